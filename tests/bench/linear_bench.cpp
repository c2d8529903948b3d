// Speed of block-format linear layers: GMAC/s with 512 rows (prefill), GB/s of weights with one row (decode).
//   linear_bench [--threads N] [--isa NAME] [--rows N] [--type NAME]... [--shape OUTxIN]... [--seconds S] [--cached]
// Each number is of the median of many short runs, quantization of the activations included.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"

using namespace headrace;

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t out, in;
};

std::optional<DType> type_named(const std::string& name) {
  for (int32_t i = 0; i < static_cast<int32_t>(DType::kCount); ++i) {
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Bytes whose float16 fields are small and finite wherever they lie: the top bit of each odd byte's exponent is clear.
std::byte weight_byte(uint64_t offset) {
  const uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15ull;
  return static_cast<std::byte>((mixed >> 56) & 0xbf);
}

// Rows of such bytes. Formats of quantized checkpoints begin a block with a float32 scale, which arbitrary bytes would make so
// small that processors take other ways.
void fill_weights(DType dtype, uint64_t offset, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = weight_byte(offset + i);
  const DTypeInfo& info = dtype_info(dtype);
  if (info.ggml_type >= 0 || !is_block_format(dtype)) return;
  constexpr float kScale = 0.01f;
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  const size_t skip = (block_bytes - offset % block_bytes) % block_bytes;
  for (size_t i = skip; i + sizeof kScale <= out.size(); i += block_bytes) std::memcpy(&out[i], &kScale, sizeof kScale);
}

double median_seconds(Backend& backend, const std::vector<std::unique_ptr<PackedWeight>>& weights, int64_t rows,
                      const float* x, float* y, double seconds) {
  std::vector<double> all;
  size_t next = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const PackedWeight& weight = *weights[next++ % weights.size()];
    LinearOutput output{&weight, nullptr, y, weight.rows(), false};
    LinearParams params;
    params.x = x;
    params.num_tokens = rows;
    params.in_features = weight.cols();
    params.outputs = std::span(&output, 1);
    const auto start = Clock::now();
    backend.linear(params);
    all.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < end);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = usable_processors();
  double seconds = 0.15;
  int64_t many_rows = 512;
  bool cached = false;
  std::vector<std::string> shape_names = {"1536x1536", "8960x1536", "1536x8960"};
  bool sixteen = false;
  std::string isa;
  std::vector<std::string> types = {"Q4_0", "Q4_1", "Q5_0",   "Q5_1",   "Q8_0",  "Q2_K",    "Q3_K", "Q4_K",
                                    "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ3_S"};
  CLI::App app("Speed of block-format linear layers");
  app.add_option("--threads", threads);
  app.add_option("--isa", isa);
  app.add_option("--rows", many_rows);
  app.add_option("--type", types);
  app.add_option("--seconds", seconds);
  app.add_option("--shape", shape_names, "out x in features");
  app.add_flag("--cached", cached, "one copy of each weight: decoding reads a cache where it fits");
  app.add_flag("--int16", sixteen, "16-bit activations");
  CLI11_PARSE(app, argc, argv);

  std::vector<Shape> shapes;
  int64_t most_in = 0, most_out = 0;
  for (const std::string& name : shape_names) {
    long long out = 0, in = 0;
    if (std::sscanf(name.c_str(), "%lldx%lld", &out, &in) != 2 || out <= 0 || in <= 0) {
      std::fprintf(stderr, "no shape: %s\n", name.c_str());
      return 1;
    }
    shapes.push_back({out, in});
    most_out = std::max<int64_t>(most_out, out);
    most_in = std::max<int64_t>(most_in, in);
  }
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(many_rows * most_in)), y(static_cast<size_t>(many_rows * most_out));
  for (float& value : x) value = normal(rng);

  for (const Isa each : available_isas()) {
    if (!isa.empty() && isa != isa_name(each)) continue;
    auto made = make_cpu_backend({each, threads});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().to_string().c_str());
      return 1;
    }
    Backend& backend = **made;
    for (const std::string& name : types) {
      const auto dtype = type_named(name);
      if (!dtype) {
        std::fprintf(stderr, "unknown type %s\n", name.c_str());
        return 1;
      }
      std::printf("%-12s %-8s", std::string(isa_name(each)).c_str(), name.c_str());
      for (const Shape& shape : shapes) {
        WeightSource source{"weight", *dtype, shape.out, shape.in, [&](uint64_t offset, std::span<std::byte> to) {
                              fill_weights(*dtype, offset, to);
                              return Status();
                            }};
        PackOptions options;
        if (sixteen) options.activations = ActivationType::kInt16;
        // Enough copies that decoding reads memory, not a cache.
        std::vector<std::unique_ptr<PackedWeight>> weights;
        uint64_t bytes = 0;
        while (bytes < (uint64_t{768} << 20)) {
          auto packed = backend.pack(source, options);
          if (!packed.ok()) {
            std::fprintf(stderr, "%s\n", packed.status().to_string().c_str());
            return 1;
          }
          bytes += (*packed)->bytes();
          weights.push_back(packed.take());
          if (cached || weights.size() == 96) break;
        }
        const double many = median_seconds(backend, weights, many_rows, x.data(), y.data(), seconds);
        const double one = median_seconds(backend, weights, 1, x.data(), y.data(), seconds);
        std::printf("  [%5lld,%5lld] %7.1f GMAC/s %6.1f GB/s", static_cast<long long>(shape.out),
                    static_cast<long long>(shape.in),
                    static_cast<double>(many_rows * shape.out * shape.in) / many / 1e9,
                    static_cast<double>(weights[0]->bytes()) / one / 1e9);
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
  return 0;
}
