// Products of float32, float16 and bfloat16 weights against sums in float64: values, equal bits for any number of rows,
// traffic, synchronisation; and what becomes of a sum.
#include <array>
#include <cmath>
#include <cstring>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/linear_float.h"
#include "kernels/linear_half.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

using cuda::FloatType;

struct Product {
  FloatType type;
  int64_t tokens, rows, cols;
  std::vector<float> weight, x;  // values that the type holds
  bool with_all = false;         // a bias, scales of rows, a sum to add to, and rows of y that lie apart
};

float rounded(FloatType type, float value) {
  return type == FloatType::kF16    ? half_to_float(float_to_half(value))
         : type == FloatType::kBF16 ? bfloat16_to_float(float_to_bfloat16(value))
                                    : value;
}

std::vector<uint16_t> narrow(FloatType type, const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) {
    out.push_back(type == FloatType::kF16 ? float_to_half(value) : float_to_bfloat16(value));
  }
  return out;
}

Product product(FloatType type, int64_t tokens, int64_t rows, int64_t cols) {
  Product out{type,
              tokens,
              rows,
              cols,
              random_floats(static_cast<size_t>(rows * cols), 21),
              random_floats(static_cast<size_t>(tokens * cols), 22)};
  for (std::vector<float>* values : {&out.weight, &out.x}) {
    for (float& value : *values) value = rounded(type, value);
  }
  return out;
}

int64_t stride_of(const Product& p) { return p.rows + (p.with_all ? 3 : 0); }
std::vector<float> bias_of(const Product& p) { return random_floats(static_cast<size_t>(p.rows), 23); }
std::vector<float> scales_of(const Product& p) { return random_floats(static_cast<size_t>(p.tokens), 24); }
std::vector<float> before(const Product& p) { return random_floats(static_cast<size_t>(p.tokens * stride_of(p)), 25); }

// The first `tokens` rows.
std::vector<float> run(const Product& p, int64_t tokens) {
  DeviceArray<float> bias(bias_of(p)), scales(scales_of(p)), y(before(p));
  cuda::LinearDestination to{y.get(), stride_of(p), p.with_all ? bias.get() : nullptr,
                             p.with_all ? scales.get() : nullptr, p.with_all};
  if (p.type == FloatType::kF32) {
    DeviceArray<float> weight(p.weight), x(p.x);
    REQUIRE(cuda::linear_float({weight.get(), p.rows, p.cols, x.get(), tokens, to}, nullptr) == cudaSuccess);
    return y.read();
  }
  DeviceArray<uint16_t> weight(narrow(p.type, p.weight)), x(narrow(p.type, p.x));
  DeviceArray<float> workspace(std::max<size_t>(cuda::linear_workspace(p.rows, p.cols, tokens), 1));
  REQUIRE(cuda::linear_half({weight.get(), p.rows, p.cols, p.type, x.get(), tokens, workspace.get(), to}, nullptr) ==
          cudaSuccess);
  return y.read();
}

// The largest error in units of what float32 sums in any order allow: a rounding for each column, and some of what follows.
double worst(const Product& p, const std::vector<float>& y) {
  const double roundings = static_cast<double>(p.cols) + 20.0;
  const std::vector<float> bias = bias_of(p), scales = scales_of(p), old = before(p);
  double out = 0.0;
  for (int64_t token = 0; token < p.tokens; ++token) {
    for (int64_t n = 0; n < p.rows; ++n) {
      double sum = 0.0, magnitude = 0.0;
      const auto add = [&](double term) {
        sum += term;
        magnitude += std::fabs(term);
      };
      const double scale = p.with_all ? static_cast<double>(scales[static_cast<size_t>(token)]) : 1.0;
      for (int64_t k = 0; k < p.cols; ++k) {
        add(scale * static_cast<double>(p.x[static_cast<size_t>(token * p.cols + k)]) *
            static_cast<double>(p.weight[static_cast<size_t>(n * p.cols + k)]));
      }
      const auto at = static_cast<size_t>(token * stride_of(p) + n);
      if (p.with_all) add(static_cast<double>(bias[static_cast<size_t>(n)]));
      if (p.with_all) add(static_cast<double>(old[at]));
      const double share = std::fabs(static_cast<double>(y[at]) - sum) / (roundings * kUnit * magnitude);
      out = share <= 1.0 ? std::max(out, share) : INFINITY;
    }
    for (int64_t n = p.rows; n < stride_of(p); ++n) {  // what lies between rows is nobody's
      const auto at = static_cast<size_t>(token * stride_of(p) + n);
      if (y[at] != old[at]) out = INFINITY;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("Products agree with the reference under every schedule") {
  for (const FloatType type : {FloatType::kF32, FloatType::kF16, FloatType::kBF16}) {
    INFO("type " << static_cast<int>(type));
    const Product p = product(type, 9, 70, type == FloatType::kF32 ? 51 : 328);
    under_schedules(schedules(type == FloatType::kBF16 ? 2 : 20), [&] { CHECK(worst(p, run(p, p.tokens)) <= 1.0); });
  }
}

TEST_CASE("Products of odd shapes, with K whole and cut, and with all that follows a sum") {
  for (const FloatType type : {FloatType::kF32, FloatType::kF16, FloatType::kBF16}) {
    for (const auto& [tokens, rows, cols] :
         {std::array<int64_t, 3>{1, 16, 64}, {1, 1, 8}, {17, 100, 192}, {33, 129, 56}, {3, 40, 2048}}) {
      for (const bool with_all : {false, true}) {
        Product p = product(type, tokens, rows, cols);
        p.with_all = with_all;
        INFO("type " << static_cast<int>(type) << ": " << tokens << " tokens, " << rows << " rows, " << cols
                     << " columns");
        CHECK(worst(p, run(p, tokens)) <= 1.0);
        CHECK(to_string(take_findings()).empty());
      }
    }
  }
  take_counters();
}

TEST_CASE("A row of a product has the same bits alone as among others") {
  for (const FloatType type : {FloatType::kF32, FloatType::kF16, FloatType::kBF16}) {
    const Product p = product(type, 33, 48, 1024);
    const std::vector<float> all = run(p, 33);
    for (const int64_t tokens : {1, 2, 8, 9, 16, 17}) {
      const std::vector<float> some = run(p, tokens);
      INFO("type " << static_cast<int>(type) << ", " << tokens << " tokens");
      CHECK(std::memcmp(some.data(), all.data(), static_cast<size_t>(tokens * p.rows) * sizeof(float)) == 0);
    }
  }
  CHECK(to_string(take_findings()).empty());
  take_counters();
}

TEST_CASE("The 16-bit product reads its weights once and meets no bank twice") {
  for (const int64_t tokens : {1, 16}) {
    const Product p = product(FloatType::kF16, tokens, 512, 1024);
    run(p, tokens);
    const std::vector<Counters> counters = take_counters();
    REQUIRE(counters.size() == 2);
    const Counters& c = counters[0];
    INFO(to_string(c));
    CHECK(static_cast<double>(c.bytes_read) <= 1.05 * 2.0 * (512.0 * 1024 + static_cast<double>(tokens) * 1024));
    CHECK(c.global_loads.sectors == c.global_loads.ideal_sectors);
    CHECK(c.global_stores.sectors == c.global_stores.ideal_sectors);
    CHECK(c.conflicts() == 0);
  }
}

TEST_CASE("Each synchronisation point of the 16-bit product is needed") {
  const Product p = product(FloatType::kF16, 9, 70, 448);
  const std::vector<float> right = run(p, p.tokens);
  const std::vector<Mutant> mutants = run_mutants([&] { return run(p, p.tokens) == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 2);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
