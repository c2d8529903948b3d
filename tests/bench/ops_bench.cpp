// Timings of the CPU backend's float linear layers and attention, per instruction set and number of threads:
//   ops_bench --benchmark_filter='attention.*avx512'
// "GFLOP/s" counts a multiply-add as two, "GB/s" the weight or cache bytes that one call must read.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/cpu_backend.h"
#include "tensor/half.h"

namespace headrace {
namespace {

std::vector<float> random_floats(size_t count) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> out(count);
  for (float& x : out) x = uniform(generator);
  return out;
}

void rate(benchmark::State& state, const char* name, double per_call) {
  state.counters[name] = benchmark::Counter(per_call * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void linear(benchmark::State& state, Isa isa, int threads, DType dtype, int64_t tokens) {
  const int64_t rows = 4096, cols = 2048, element = dtype == DType::kF32 ? 4 : 2;
  auto backend = make_cpu_backend({isa, threads}).take();
  WeightSource source;
  source.name = "weight";
  source.dtype = dtype;
  source.rows = rows;
  source.cols = cols;
  source.read = [&](uint64_t, std::span<std::byte> destination) {
    for (size_t at = 0; at < destination.size(); at += 2) {
      const uint16_t bits = 0x3c00 | static_cast<uint16_t>(at * 31 & 0xff);
      std::memcpy(destination.data() + at, &bits, 2);
    }
    return Status();
  };
  const auto weight = backend->pack(source, {}).take();
  const std::vector<float> x = random_floats(static_cast<size_t>(tokens * cols));
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  const LinearOutput output{weight.get(), nullptr, y.data(), rows, false};
  for (auto _ : state) backend->linear({x.data(), tokens, cols, {&output, 1}});
  rate(state, "GFLOP/s", 2.0 * static_cast<double>(rows * cols * tokens));
  rate(state, "GB/s", static_cast<double>(rows * cols * element));
}

void attention(benchmark::State& state, Isa isa, int threads, KvDType dtype, int32_t first, int32_t tokens) {
  const int32_t head_dim = 128, kv_heads = 2, group = 6, num_heads = kv_heads * group, length = first + tokens;
  const KvLayout layout{dtype, kv_heads, head_dim, 16};
  auto backend = make_cpu_backend({isa, threads}).take();
  std::vector<std::byte> cache(static_cast<size_t>((length + 15) / 16) * layout.block_bytes());
  std::vector<int32_t> table, positions;
  std::vector<int64_t> slots;
  for (int32_t i = 0; i < (length + 15) / 16; ++i) table.push_back(i);
  for (int32_t i = 0; i < length; ++i) slots.push_back(i);
  for (int32_t i = first; i < length; ++i) positions.push_back(i);
  std::vector<float> k = random_floats(static_cast<size_t>(length * kv_heads * head_dim)), v = k;
  RopeStoreParams store;
  store.k = k.data();
  store.v = v.data();
  store.num_tokens = length;
  store.layout = layout;
  store.cache = cache.data();
  store.slots = slots.data();
  backend->rope_and_store_kv(store);
  const std::vector<float> q = random_floats(static_cast<size_t>(tokens * num_heads * head_dim));
  std::vector<float> out(q.size());
  const int32_t start[] = {0, tokens};
  const int32_t* tables[] = {table.data()};
  PagedAttentionParams p;
  p.q = q.data();
  p.out = out.data();
  p.num_heads = num_heads;
  p.num_seqs = 1;
  p.query_start = start;
  p.block_tables = tables;
  p.positions = positions.data();
  p.layout = layout;
  p.cache = cache.data();
  p.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (auto _ : state) backend->paged_attention(p);
  double pairs = 0.0;
  for (int32_t position : positions) pairs += position + 1.0;
  rate(state, "GFLOP/s", 4.0 * pairs * num_heads * head_dim);
  rate(state, "GB/s", static_cast<double>(cache.size()));
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using namespace headrace;
  for (Isa isa : available_isas()) {
    for (int threads : {1, usable_processors()}) {
      const std::string tail = "/" + std::string(isa_name(isa)) + "/threads:" + std::to_string(threads);
      const auto add = [&](const std::string& name, auto run) {
        benchmark::RegisterBenchmark((name + tail).c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond);
      };
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (int64_t tokens : {1, 4, 12, 128, 512}) {
          add("linear/" + std::string(dtype_name(dtype)) + "/tokens:" + std::to_string(tokens),
              [=](benchmark::State& state) { linear(state, isa, threads, dtype, tokens); });
        }
      }
      for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
        const std::string name = "attention/" + std::string(kv_dtype_name(dtype));
        add(name + "/prefill:512", [=](benchmark::State& s) { attention(s, isa, threads, dtype, 0, 512); });
        add(name + "/decode:4096", [=](benchmark::State& s) { attention(s, isa, threads, dtype, 4095, 1); });
      }
      if (threads == usable_processors() && threads == 1) break;
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
