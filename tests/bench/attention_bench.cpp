// Attention against the machine's limits, of Qwen2.5-1.5B's shape where no other is given.
//   attention_bench [--heads N] [--kv-heads N] [--head-dim N] [--threads N] [--isa NAME] [--kv NAME]... [--rows N]
//                   [--context N]... [--sequences N] [--shared N] [--seconds S] [--only prefill|decode|limits]
// GFMA/s counts 2 * head_dim multiply-adds for each visible key and query head, and its share of the measured FMA peak.
// Prefill: `rows` new rows that end at the context's length. The best of several runs.
// Decode: one new row of each of `sequences`, whose first `shared` positions lie in the same blocks, over layers that
// together exceed every cache; GB/s counts the bytes of the keys and values, once where they are shared, and their share
// of the read bandwidth measured between the runs. Medians.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "roofline.h"

using namespace headrace;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kBlock = 16;

struct Shape {
  int32_t heads = 12, kv_heads = 2, head_dim = 128;
  int32_t sequences = 1, shared = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

// The cache of one layer, filled for every position of a context. Blocks lie in order, as a fresh pool gives them.
struct Layer {
  Layer(Backend& backend, const Shape& shape, KvDType dtype, int32_t context)
      : layout{dtype, shape.kv_heads, shape.head_dim, kBlock} {
    const int32_t each = (context + kBlock - 1) / kBlock, shared = std::min(shape.shared / kBlock, each);
    const int32_t blocks = shared + shape.sequences * (each - shared);
    tables.resize(static_cast<size_t>(shape.sequences));
    for (int32_t seq = 0; seq < shape.sequences; ++seq) {
      std::vector<int32_t>& table = tables[static_cast<size_t>(seq)];
      for (int32_t i = 0; i < each; ++i) table.push_back(i < shared ? i : i + seq * (each - shared));
    }
    cache.resize(static_cast<size_t>(blocks) * layout.block_bytes());
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const int32_t width = shape.kv_heads * shape.head_dim;
    std::vector<float> noise(1 << 16);
    for (float& x : noise) x = normal(rng);
    std::vector<float> k(static_cast<size_t>(kBlock * width)), v = k;
    for (int32_t block = 0; block < blocks; ++block) {
      std::vector<int64_t> slots;
      for (int32_t i = 0; i < kBlock; ++i) slots.push_back(int64_t{block} * kBlock + i);
      for (size_t i = 0; i < k.size(); ++i) {
        k[i] = noise[(static_cast<size_t>(block) * 977 + i) % noise.size()];
        v[i] = noise[(static_cast<size_t>(block) * 1361 + i + 31) % noise.size()];
      }
      RopeStoreParams store;
      store.k = k.data();
      store.v = v.data();
      store.num_tokens = kBlock;
      store.layout = layout;
      store.cache = cache.data();
      store.slots = slots.data();
      backend.rope_and_store_kv(store);
    }
  }

  KvLayout layout;
  std::vector<std::byte> cache;
  std::vector<std::vector<int32_t>> tables;
};

// `rows` at the end of each of several sequences.
struct Rows {
  Rows(const Shape& shape_, int32_t context, int32_t rows) : shape(shape_) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    for (int32_t seq = 0; seq < shape.sequences; ++seq) {
      for (int32_t i = context - rows; i < context; ++i) positions.push_back(i);
      starts.push_back(static_cast<int32_t>(positions.size()));
    }
    q.resize(positions.size() * static_cast<size_t>(shape.heads * shape.head_dim));
    for (float& x : q) x = normal(rng);
    out.resize(q.size());
    for (int32_t position : positions) pairs += position + 1.0;
  }

  void attend(Backend& backend, const Layer& layer) {
    std::vector<const int32_t*> tables;
    for (int32_t seq = 0; seq < shape.sequences; ++seq) tables.push_back(layer.tables[static_cast<size_t>(seq)].data());
    PagedAttentionParams p;
    p.q = q.data();
    p.out = out.data();
    p.num_heads = shape.heads;
    p.num_seqs = shape.sequences;
    p.query_start = starts.data();
    p.block_tables = tables.data();
    p.positions = positions.data();
    p.layout = layer.layout;
    p.cache = layer.cache.data();
    p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    backend.paged_attention(p);
  }

  double multiply_adds() const { return pairs * shape.heads * 2 * shape.head_dim; }

  const Shape shape;
  std::vector<float> q, out;
  std::vector<int32_t> positions, starts = {0};
  double pairs = 0.0;  // visible keys of all rows
};

void prefill(Backend& backend, const Shape& shape, KvDType dtype, int32_t context, int32_t rows, double peak,
             double seconds) {
  const Layer layer(backend, shape, dtype, context);
  Rows batch(shape, context, std::min(rows, context));
  double best = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    batch.attend(backend, layer);
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < seconds);
  const double rate = batch.multiply_adds() / best;
  std::printf("  prefill %-4s context %6d rows %4zu  %8.1f GFMA/s  %5.1f %% of the peak\n",
              std::string(kv_dtype_name(dtype)).c_str(), context, batch.positions.size(), rate * 1e-9,
              100.0 * rate / peak);
  std::fflush(stdout);
}

void decode(Backend& backend, const cli::ReadProbe& probe, const Shape& shape, KvDType dtype, int32_t context,
            double peak, double seconds) {
  std::vector<Layer> layers;
  size_t bytes = 0;
  while (bytes < (size_t{192} << 20)) {
    if (layers.empty()) {
      layers.emplace_back(backend, shape, dtype, context);
    } else {
      layers.push_back(layers.front());
    }
    bytes += layers.back().cache.size();
  }
  Rows batch(shape, context, 1);
  std::vector<double> rates, limits, shares;
  double limit = probe.pass();
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    for (const Layer& layer : layers) batch.attend(backend, layer);
    rates.push_back(static_cast<double>(bytes) / seconds_since(start));
    const double next = probe.pass();
    limits.push_back(0.5 * (limit + next));
    shares.push_back(rates.back() / limits.back());
    limit = next;
  } while (seconds_since(begin) < seconds);
  const double layer_seconds = static_cast<double>(bytes) / static_cast<double>(layers.size()) / median(rates);
  const double multiply_adds = batch.multiply_adds() / layer_seconds;
  std::printf(
      "  decode  %-4s context %6d layers %3zu  %6.2f GB/s of %6.2f GB/s read: %5.1f %%, %6.1f GFMA/s: %5.1f %%, %8.1f "
      "us "
      "(%zu runs)\n",
      std::string(kv_dtype_name(dtype)).c_str(), context, layers.size(), median(rates) * 1e-9, median(limits) * 1e-9,
      100.0 * median(shares), multiply_adds * 1e-9, 100.0 * multiply_adds / peak, layer_seconds * 1e6, rates.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = usable_processors();
  int32_t rows = 512;
  double seconds = 1.0;
  std::string isa, only;
  std::vector<std::string> types = {"f16", "q8"};
  std::vector<int32_t> contexts = {512, 2048, 8192, 32768};
  Shape shape;
  CLI::App app("Attention against the machine's limits");
  app.add_option("--heads", shape.heads);
  app.add_option("--kv-heads", shape.kv_heads);
  app.add_option("--head-dim", shape.head_dim);
  app.add_option("--sequences", shape.sequences);
  app.add_option("--shared", shape.shared, "positions");
  app.add_option("--threads", threads);
  app.add_option("--isa", isa);
  app.add_option("--kv", types);
  app.add_option("--rows", rows);
  app.add_option("--context", contexts);
  app.add_option("--seconds", seconds, "of each measurement");
  app.add_option("--only", only);
  CLI11_PARSE(app, argc, argv);

  for (const Isa each : available_isas()) {
    if (!isa.empty() && isa != isa_name(each)) continue;
    auto made = make_cpu_backend({each, threads});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().to_string().c_str());
      return 1;
    }
    Backend& backend = **made;
    const std::string name(isa_name(each));
    const double peak = cli::measure_roofline(name, threads).float_multiply_adds_per_second;
    const cli::ReadProbe probe(name, threads);
    std::printf("%s, %d threads: peak %.1f GFMA/s, read %.1f GB/s\n", name.c_str(), threads, peak * 1e-9,
                probe.pass() * 1e-9);
    if (only == "limits") continue;
    for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
      if (std::find(types.begin(), types.end(), kv_dtype_name(dtype)) == types.end()) continue;
      for (const int32_t context : contexts) {
        if (only != "decode") prefill(backend, shape, dtype, context, rows, peak, seconds);
      }
      for (const int32_t context : contexts) {
        if (only != "prefill") decode(backend, probe, shape, dtype, context, peak, seconds);
      }
    }
  }
  return 0;
}
