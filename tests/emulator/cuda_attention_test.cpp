// Attention over the paged cache against the scalar reference: decode and prefill, equal bits, traffic, synchronisation.
#include <cmath>
#include <cstring>
#include <random>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/paged_attention.h"
#include "ops/reference_backend.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

// Rows of a sequence: the last `rows` of `length` positions.
struct Sequence {
  int32_t length, rows;
};

const std::vector<float> kSinks = random_floats(16, 12);

struct Case {
  KvLayout layout;
  int32_t num_heads;
  int32_t window;
  std::vector<Sequence> sequences;
  std::vector<float> q;  // that float16 holds
  std::vector<uint8_t> cache;
  std::vector<std::vector<int32_t>> blocks;  // of each sequence
  std::vector<int32_t> positions;
  int32_t max_blocks = 0, max_position = 0;
  float softcap = 0.0f;
  bool with_sinks = false;

  int64_t num_tokens() const { return static_cast<int64_t>(positions.size()); }
};

Case make(int32_t head_dim, int32_t num_heads, int32_t num_kv_heads, int32_t window, std::vector<Sequence> sequences) {
  Case c{{KvDType::kF16, num_kv_heads, head_dim, 32}, num_heads, window, std::move(sequences), {}, {}, {}, {}};
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  int32_t next = 0;
  for (const Sequence& s : c.sequences) {
    std::vector<int32_t> blocks;
    for (int32_t at = 0; at < s.length; at += c.layout.block_size) blocks.push_back(next++);
    c.max_blocks = std::max(c.max_blocks, static_cast<int32_t>(blocks.size()));
    c.max_position = std::max(c.max_position, s.length - 1);
    c.blocks.push_back(std::move(blocks));
    for (int32_t at = s.length - s.rows; at < s.length; ++at) c.positions.push_back(at);
  }
  // Blocks lie in no order.
  for (std::vector<int32_t>& blocks : c.blocks) {
    for (int32_t& block : blocks) block = next - 1 - block;
  }
  for (size_t i = 0; i < static_cast<size_t>(next) * c.layout.block_bytes() / 2; ++i) {
    const uint16_t half = float_to_half(normal(random));
    c.cache.push_back(static_cast<uint8_t>(half));
    c.cache.push_back(static_cast<uint8_t>(half >> 8));
  }
  for (size_t i = 0; i < c.positions.size() * static_cast<size_t>(num_heads * head_dim); ++i) {
    c.q.push_back(half_to_float(float_to_half(normal(random))));
  }
  return c;
}

std::vector<float> run(const Case& c) {
  std::vector<int32_t> tables;
  for (const std::vector<int32_t>& blocks : c.blocks) {
    tables.insert(tables.end(), blocks.begin(), blocks.end());
    tables.resize(tables.size() + static_cast<size_t>(c.max_blocks) - blocks.size(), -1);
  }
  cuda::PagedAttentionArguments a;
  a.num_heads = c.num_heads;
  a.layout = c.layout;
  std::vector<cuda::AttentionTile> tiles;
  int32_t token = 0;
  for (int32_t sequence = 0; sequence < static_cast<int32_t>(c.sequences.size()); ++sequence) {
    const int32_t end = token + c.sequences[static_cast<size_t>(sequence)].rows;
    for (; token < end; token += tiles.back().num_tokens) {
      tiles.push_back({sequence, token, std::min(a.rows_per_tile(), end - token)});
    }
  }
  DeviceArray<float> q(c.q), out(c.q.size()), sinks(kSinks);
  DeviceArray<uint8_t> cache(c.cache);
  DeviceArray<int32_t> positions(c.positions), device_tables(tables);
  DeviceArray<cuda::AttentionTile> device_tiles(tiles);
  a.q = q.get();
  a.out = out.get();
  a.num_tokens = c.num_tokens();
  a.tiles = device_tiles.get();
  a.num_tiles = static_cast<int32_t>(tiles.size());
  a.positions = positions.get();
  a.block_tables = device_tables.get();
  a.max_blocks = c.max_blocks;
  a.max_position = c.max_position;
  a.cache = reinterpret_cast<const std::byte*>(cache.get());
  a.scale = 1.0f / std::sqrt(static_cast<float>(c.layout.head_dim));
  a.window = c.window;
  a.logit_softcap = c.softcap;
  a.sinks = c.with_sinks ? sinks.get() : nullptr;
  DeviceArray<float> workspace(cuda::attention_workspace(a));
  a.workspace = workspace.get();
  REQUIRE(cuda::paged_attention(a, nullptr) == cudaSuccess);
  return out.read();
}

std::vector<float> expected(const Case& c) {
  std::vector<float> out(c.q.size());
  std::vector<int32_t> starts = {0};
  std::vector<const int32_t*> tables;
  for (size_t i = 0; i < c.sequences.size(); ++i) {
    starts.push_back(starts.back() + c.sequences[i].rows);
    tables.push_back(c.blocks[i].data());
  }
  PagedAttentionParams p;
  p.q = c.q.data();
  p.out = out.data();
  p.num_heads = c.num_heads;
  p.num_seqs = static_cast<int32_t>(c.sequences.size());
  p.query_start = starts.data();
  p.block_tables = tables.data();
  p.positions = c.positions.data();
  p.layout = c.layout;
  p.cache = reinterpret_cast<const std::byte*>(c.cache.data());
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.layout.head_dim));
  p.window = c.window;
  p.logit_softcap = c.softcap;
  p.sinks = c.with_sinks ? kSinks.data() : nullptr;
  reference_paged_attention(p);
  return out;
}

// The weights of the values are rounded to float16, each by at most 2^-11 of itself, so their sum errs by 2^-11 of the mean
// magnitude of the values, below 1.5 for unit normals. Scores err by some 128 float32 roundings of at most 60, which the
// exponential passes on.
double worst(const std::vector<float>& wanted, const std::vector<float>& out) {
  double worst = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double value = static_cast<double>(wanted[i]);
    const double bound = 0x1p-11 * 1.5 + 128 * 0x1p-24 * 60;
    const double share = std::fabs(static_cast<double>(out[i]) - value) / bound;
    worst = share <= 1.0 ? std::max(worst, share) : INFINITY;
  }
  return worst;
}

}  // namespace

TEST_CASE("Paged attention agrees with the reference under every schedule") {
  const Case c = make(64, 4, 2, 0, {{70, 1}, {33, 5}, {1, 1}});
  const std::vector<float> wanted = expected(c);
  under_schedules(schedules(), [&] { CHECK(worst(wanted, run(c)) <= 1.0); });
}

TEST_CASE("Paged attention of longer sequences, larger groups and windows") {
  for (const Case& c : {make(128, 8, 1, 0, {{600, 1}, {513, 3}, {512, 1}}), make(128, 2, 2, 40, {{560, 20}}),
                        make(64, 16, 1, 0, {{40, 3}}), make(64, 3, 1, 0, {{50, 12}})}) {
    INFO("head_dim " << c.layout.head_dim << " heads " << c.num_heads << " window " << c.window);
    CHECK(worst(expected(c), run(c)) <= 1.0);
    CHECK(to_string(take_findings()).empty());
  }
  take_counters();
}

TEST_CASE("Paged attention with a soft cap and sinks") {
  for (const bool with_sinks : {false, true}) {
    Case c = make(64, 4, 2, with_sinks ? 20 : 0, {{70, 1}, {33, 5}});
    c.softcap = with_sinks ? 0.0f : 2.0f;
    c.with_sinks = with_sinks;
    CHECK(worst(expected(c), run(c)) <= 1.0);
    CHECK(to_string(take_findings()).empty());
  }
  take_counters();
}

TEST_CASE("A row's attention has the same bits whole, in chunks and alone") {
  const Case whole = make(64, 4, 2, 0, {{530, 20}});
  const std::vector<float> all = run(whole);
  const size_t row = 4 * 64;
  for (const int32_t chunk : {1, 3, 8}) {
    for (int32_t end = 530 - 20 + chunk; end <= 530; end += chunk) {
      Case part = whole;
      part.sequences = {{end, chunk}};
      part.positions.clear();
      for (int32_t at = end - chunk; at < end; ++at) part.positions.push_back(at);
      part.max_position = end - 1;
      const size_t first = static_cast<size_t>(end - chunk - 510) * row, count = static_cast<size_t>(chunk) * row;
      part.q.assign(whole.q.begin() + static_cast<std::ptrdiff_t>(first),
                    whole.q.begin() + static_cast<std::ptrdiff_t>(first + count));
      const std::vector<float> some = run(part);
      INFO("rows before " << end << ", " << chunk << " of them");
      CHECK(std::memcmp(some.data(), all.data() + first, count * sizeof(float)) == 0);
    }
  }
  CHECK(to_string(take_findings()).empty());
  take_counters();
}

TEST_CASE("Decode attention reads the cache once and meets no bank twice") {
  const Case c = make(128, 8, 2, 0, {{1024, 1}, {512, 1}});
  run(c);
  const std::vector<Counters> counters = take_counters();
  REQUIRE(counters.size() == 2);
  INFO(to_string(counters[0]) << to_string(counters[1]));
  const double ideal = (1024.0 + 512.0) * 2 * 2 * 128 * 2 + 2 * 2.0 * 8 * 128 * 4;
  const double moved = static_cast<double>(counters[0].bytes_read + counters[0].bytes_written + counters[1].bytes_read +
                                           counters[1].bytes_written);
  CHECK(moved <= 1.05 * ideal);
  CHECK(counters[0].conflicts() == 0);
  CHECK(counters[1].conflicts() == 0);
  CHECK(counters[0].global_stores.sectors == counters[0].global_stores.ideal_sectors);
}

TEST_CASE("Each synchronisation point of paged attention is needed") {
  const Case c = make(64, 4, 2, 0, {{200, 1}, {33, 5}});
  const std::vector<float> right = run(c);
  const std::vector<Mutant> mutants = run_mutants([&] { return run(c) == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 5);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
