// Attention in float32 against the scalar reference, for every type of cache and everything that models ask of it.
#include <cmath>
#include <cstring>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/attention_float.h"
#include "ops/reference_backend.h"

namespace headrace::emulator {
namespace {

struct Case {
  KvLayout layout;
  int32_t num_heads = 0, window = 0, chunk = 0;
  float softcap = 0.0f;
  bool with_sinks = false;
  std::vector<int32_t> lengths, rows;  // of each sequence: its last `rows` positions are computed
};

struct Data {
  std::vector<float> q, sinks;
  std::vector<int32_t> positions, sequences, starts{0};
  std::vector<std::vector<int32_t>> blocks;
  std::vector<std::byte> cache;
  int32_t max_blocks = 0;
};

Data make(const Case& c) {
  Data out;
  int32_t next = 0;
  for (size_t seq = 0; seq < c.lengths.size(); ++seq) {
    std::vector<int32_t> blocks;
    for (int32_t at = 0; at < c.lengths[seq]; at += c.layout.block_size) blocks.push_back(next++);
    out.max_blocks = std::max(out.max_blocks, static_cast<int32_t>(blocks.size()));
    out.blocks.push_back(std::move(blocks));
    for (int32_t at = c.lengths[seq] - c.rows[seq]; at < c.lengths[seq]; ++at) {
      out.positions.push_back(at);
      out.sequences.push_back(static_cast<int32_t>(seq));
    }
    out.starts.push_back(static_cast<int32_t>(out.positions.size()));
  }
  for (std::vector<int32_t>& blocks : out.blocks) {
    for (int32_t& block : blocks) block = next - 1 - block;
  }
  out.cache.resize(static_cast<size_t>(next) * c.layout.block_bytes());
  // The reference stores what it is given, position by position.
  const int32_t kv_floats = c.layout.num_kv_heads * c.layout.head_dim;
  for (size_t seq = 0; seq < c.lengths.size(); ++seq) {
    const auto count = static_cast<size_t>(c.lengths[seq] * kv_floats);
    std::vector<float> k = random_floats(count, 31 + static_cast<uint32_t>(seq)),
                       v = random_floats(count, 41 + static_cast<uint32_t>(seq));
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    for (int32_t at = 0; at < c.lengths[seq]; ++at) {
      positions.push_back(at);
      slots.push_back(int64_t{out.blocks[seq][static_cast<size_t>(at / c.layout.block_size)]} * c.layout.block_size +
                      at % c.layout.block_size);
    }
    RopeStoreParams p;
    p.k = k.data();
    p.v = v.data();
    p.num_tokens = c.lengths[seq];
    p.positions = positions.data();
    p.layout = c.layout;
    p.cache = out.cache.data();
    p.slots = slots.data();
    reference_rope_and_store_kv(p);
  }
  out.q = random_floats(out.positions.size() * static_cast<size_t>(c.num_heads * c.layout.head_dim), 51);
  out.sinks = random_floats(static_cast<size_t>(c.num_heads), 52);
  return out;
}

float scale_of(const Case& c) { return 1.0f / std::sqrt(static_cast<float>(c.layout.head_dim)); }

std::vector<float> run(const Case& c, const Data& d) {
  std::vector<int32_t> tables;
  for (const std::vector<int32_t>& blocks : d.blocks) {
    tables.insert(tables.end(), blocks.begin(), blocks.end());
    tables.resize(tables.size() + static_cast<size_t>(d.max_blocks) - blocks.size(), -1);
  }
  DeviceArray<float> q(d.q), out(d.q.size()), sinks(d.sinks);
  DeviceArray<std::byte> cache(d.cache);
  DeviceArray<int32_t> positions(d.positions), sequences(d.sequences), device_tables(tables);
  cuda::AttentionFloatArguments a;
  a.q = q.get();
  a.out = out.get();
  a.num_tokens = static_cast<int64_t>(d.positions.size());
  a.num_heads = c.num_heads;
  a.sequences = sequences.get();
  a.positions = positions.get();
  a.block_tables = device_tables.get();
  a.max_blocks = d.max_blocks;
  a.layout = c.layout;
  a.cache = cache.get();
  a.scale = scale_of(c);
  a.window = c.window;
  a.chunk = c.chunk;
  a.logit_softcap = c.softcap;
  a.sinks = c.with_sinks ? sinks.get() : nullptr;
  REQUIRE(cuda::attention_float(a, nullptr) == cudaSuccess);
  return out.read();
}

std::vector<float> expected(const Case& c, const Data& d) {
  std::vector<float> out(d.q.size());
  std::vector<const int32_t*> tables;
  for (const std::vector<int32_t>& blocks : d.blocks) tables.push_back(blocks.data());
  PagedAttentionParams p;
  p.q = d.q.data();
  p.out = out.data();
  p.num_heads = c.num_heads;
  p.num_seqs = static_cast<int32_t>(c.lengths.size());
  p.query_start = d.starts.data();
  p.block_tables = tables.data();
  p.positions = d.positions.data();
  p.layout = c.layout;
  p.cache = d.cache.data();
  p.scale = scale_of(c);
  p.window = c.window;
  p.chunk = c.chunk;
  p.logit_softcap = c.softcap;
  p.sinks = c.with_sinks ? d.sinks.data() : nullptr;
  reference_paged_attention(p);
  return out;
}

// A score of unit normals is below 60 and errs by head_dim roundings of it, which the exponential passes on to a weighted
// mean of values below 6; the mean itself errs by a rounding for each position.
double worst(const Case& c, const std::vector<float>& wanted, const std::vector<float>& out) {
  const int32_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const double bound = kUnit * 6 * (c.layout.head_dim * 60.0 + longest);
  double worst = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double share = std::fabs(static_cast<double>(out[i]) - static_cast<double>(wanted[i])) / bound;
    worst = share <= 1.0 ? std::max(worst, share) : INFINITY;
  }
  return worst;
}

}  // namespace

TEST_CASE("Attention in float32 agrees with the reference under every schedule") {
  const Case c{{KvDType::kF32, 2, 16, 16}, 4, 0, 0, 0.0f, false, {140, 33, 1}, {1, 3, 1}};
  const Data d = make(c);
  const std::vector<float> wanted = expected(c, d);
  under_schedules(schedules(), [&] { CHECK(worst(c, wanted, run(c, d)) <= 1.0); });
}

TEST_CASE("Attention in float32 of every cache, head, window, chunk, soft cap and sink") {
  for (const Case& c : {Case{{KvDType::kF16, 1, 256, 32}, 2, 0, 0, 0.0f, false, {130}, {2}},
                        Case{{KvDType::kBF16, 3, 80, 16}, 3, 20, 0, 0.0f, true, {40, 300}, {2, 2}},
                        Case{{KvDType::kF32, 1, 512, 16}, 1, 0, 0, 2.0f, false, {20}, {1}},
                        Case{{KvDType::kF32, 2, 32, 16}, 64, 129, 50, 0.0f, true, {270}, {1}}}) {
    const Data d = make(c);
    INFO("head_dim " << c.layout.head_dim << " cache " << kv_dtype_name(c.layout.dtype));
    CHECK(worst(c, expected(c, d), run(c, d)) <= 1.0);
    CHECK(to_string(take_findings()).empty());
  }
  take_counters();
}

TEST_CASE("A row's attention in float32 has the same bits alone as among others") {
  Case c{{KvDType::kF16, 2, 32, 16}, 4, 0, 0, 0.0f, false, {200, 90}, {9, 4}};
  const Data d = make(c);
  const std::vector<float> all = run(c, d);
  const size_t width = 4 * 32;
  for (size_t row = 0; row < d.positions.size(); ++row) {
    Data one = d;
    one.q.assign(d.q.begin() + static_cast<ptrdiff_t>(row * width),
                 d.q.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    one.positions = {d.positions[row]};
    one.sequences = {d.sequences[row]};
    CHECK(std::memcmp(run(c, one).data(), all.data() + row * width, width * sizeof(float)) == 0);
  }
  CHECK(to_string(take_findings()).empty());
  take_counters();
}

TEST_CASE("Each synchronisation point of attention in float32 is needed") {
  const Case c{{KvDType::kF32, 1, 48, 16}, 1, 0, 0, 0.0f, false, {300}, {1}};
  const Data d = make(c);
  const std::vector<float> right = run(c, d);
  const std::vector<Mutant> mutants = run_mutants([&] { return run(c, d) == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 3);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
