// The Q8_0 product against the scalar reference: values, equal bits for any number of rows, traffic, synchronisation.
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/linear_q8_0.h"
#include "ops/backend.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

constexpr double kUnit = 0x1p-24;

struct Product {
  int64_t tokens, rows, cols;
  std::vector<std::byte> blocks;  // Q8_0 [rows][cols / 32]
  std::vector<uint16_t> x;        // float16 [tokens, cols]
};

Product product(int64_t tokens, int64_t rows, int64_t cols) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> code(-128, 127);
  Product out{tokens, rows, cols, {}, {}};
  for (int64_t i = 0; i < rows * cols / 32; ++i) {
    BlockQ8_0 block;
    block.d = float_to_half(0.01f * normal(random));
    for (int8_t& q : block.qs) q = static_cast<int8_t>(code(random));
    const auto* bytes = reinterpret_cast<const std::byte*>(&block);
    out.blocks.insert(out.blocks.end(), bytes, bytes + sizeof block);
  }
  for (int64_t i = 0; i < tokens * cols; ++i) out.x.push_back(float_to_half(normal(random)));
  return out;
}

// The first `tokens` rows.
std::vector<float> run(const Product& p, int64_t tokens) {
  const auto padded = static_cast<size_t>(cuda::q8_padded_rows(p.rows) * p.cols);
  std::vector<uint8_t> codes(padded);
  std::vector<uint16_t> scales(padded / 32);
  cuda::pack_q8_0(p.blocks.data(), p.rows, p.cols, codes.data(), scales.data());
  DeviceArray<uint8_t> device_codes(codes);
  DeviceArray<uint16_t> device_scales(scales), x(p.x);
  cuda::LinearQ8Arguments a{{device_codes.get(), device_scales.get(), p.rows, p.cols}, x.get(), tokens, nullptr, {}};
  DeviceArray<float> workspace(std::max<size_t>(cuda::linear_workspace(p.rows, p.cols, tokens), 1)),
      y(static_cast<size_t>(tokens * p.rows));
  a.workspace = workspace.get();
  a.to.y = y.get();
  a.to.y_stride = p.rows;
  REQUIRE(cuda::linear_q8_0(a, nullptr) == cudaSuccess);
  return y.read();
}

// The largest error in units of what the order of float32 sums allows: 32 products, then cols / 32 scaled sums and the
// parts of K, each relative to the sum of all magnitudes.
double worst(const Product& p, const std::vector<float>& y) {
  const double roundings = 32.0 + static_cast<double>(p.cols) / 32.0 + 20.0;
  std::vector<float> weight(static_cast<size_t>(p.cols));
  double out = 0.0;
  for (int64_t n = 0; n < p.rows; ++n) {
    REQUIRE(dequantize_row(DType::kQ8_0, p.blocks.data() + n * p.cols / 32 * static_cast<int64_t>(sizeof(BlockQ8_0)),
                           weight.data(), p.cols)
                .ok());
    for (int64_t token = 0; token < static_cast<int64_t>(y.size()) / p.rows; ++token) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t k = 0; k < p.cols; ++k) {
        const double term = static_cast<double>(half_to_float(p.x[static_cast<size_t>(token * p.cols + k)])) *
                            static_cast<double>(weight[static_cast<size_t>(k)]);
        sum += term;
        magnitude += std::fabs(term);
      }
      const double difference = std::fabs(static_cast<double>(y[static_cast<size_t>(token * p.rows + n)]) - sum);
      const double share = difference / (roundings * kUnit * magnitude);
      out = share <= 1.0 ? std::max(out, share) : INFINITY;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("The Q8_0 product agrees with the reference under every schedule") {
  const Product p = product(9, 70, 448);
  under_schedules(schedules(), [&] { CHECK(worst(p, run(p, p.tokens)) <= 1.0); });
}

TEST_CASE("The Q8_0 product of odd shapes, with K whole and cut") {
  for (const auto& [tokens, rows, cols] :
       {std::array<int64_t, 3>{1, 16, 64}, {1, 1, 128}, {17, 100, 192}, {33, 129, 64}, {3, 40, 2048}}) {
    const Product p = product(tokens, rows, cols);
    INFO(tokens << " tokens, " << rows << " rows, " << cols << " columns");
    CHECK(worst(p, run(p, tokens)) <= 1.0);
    CHECK(to_string(take_findings()).empty());
  }
  CHECK(cuda::linear_splits(40, 2048) == 4);
  CHECK(cuda::linear_splits(16384, 4096) == 1);
  take_counters();
}

TEST_CASE("A row of the Q8_0 product has the same bits alone as among others") {
  const Product p = product(33, 48, 1024);
  const std::vector<float> all = run(p, 33);
  for (const int64_t tokens : {1, 2, 8, 9, 16, 17}) {
    const std::vector<float> some = run(p, tokens);
    INFO(tokens << " tokens");
    CHECK(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0);
  }
  CHECK(to_string(take_findings()).empty());
  take_counters();
}

TEST_CASE("The Q8_0 product reads its weights once and meets no bank twice") {
  for (const int64_t tokens : {1, 16}) {
    const Product p = product(tokens, 512, 1024);
    run(p, tokens);
    const std::vector<Counters> counters = take_counters();
    REQUIRE(counters.size() == 2);
    const Counters& c = counters[0];
    INFO(to_string(c));
    const double parts = 4.0 * static_cast<double>(cuda::linear_splits(512, 1024) * tokens * 512);
    const double weights = 512.0 * 1024 * 34 / 32, inputs = 2.0 * static_cast<double>(tokens) * 1024;
    CHECK(static_cast<double>(c.bytes_read) <= 1.05 * (weights + inputs));
    CHECK(static_cast<double>(c.bytes_written) == parts);
    CHECK(c.global_loads.sectors == c.global_loads.ideal_sectors);
    CHECK(c.global_stores.sectors == c.global_stores.ideal_sectors);
    CHECK(c.conflicts() == 0);
    CHECK(c[Instruction::kMmaF16] == static_cast<uint64_t>((tokens + 7) / 8) * 512 / 16 * 1024 / 16);
  }
}

TEST_CASE("Each synchronisation point of the Q8_0 product is needed") {
  const Product p = product(9, 70, 448);
  const std::vector<float> right = run(p, p.tokens);
  const std::vector<Mutant> mutants = run_mutants([&] { return run(p, p.tokens) == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 2);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
