// Linear layers of F32, F16 and BF16 weights against the reference, and their independence of rows and threads.
#include "op_cases.h"

namespace headrace::test {
namespace {

struct Case {
  DType dtype;
  int64_t rows, cols;  // of the weight
  int64_t tokens;
  bool bias, accumulate;
};

std::vector<float> run(Backend& backend, const PackedWeight& weight, const Case& c, const float* x, int64_t tokens,
                       const std::vector<float>& bias, const std::vector<float>& residual) {
  std::vector<float> y(residual.begin(), residual.begin() + tokens * c.rows);
  const LinearOutput output{&weight, c.bias ? bias.data() : nullptr, y.data(), c.rows, c.accumulate};
  backend.linear({x, tokens, c.cols, {&output, 1}});
  return y;
}

void check(const Case& c) {
  INFO(dtype_name(c.dtype) << " [" << c.rows << ", " << c.cols << "] x " << c.tokens << " bias " << c.bias
                           << " accumulate " << c.accumulate);
  const std::vector<float> values = random_floats(static_cast<size_t>(c.rows * c.cols), 1);
  const std::vector<float> x = random_floats(static_cast<size_t>(c.tokens * c.cols), 2);
  const std::vector<float> bias = random_floats(static_cast<size_t>(c.rows), 3);
  const std::vector<float> residual = random_floats(static_cast<size_t>(c.tokens * c.rows), 4);
  const std::vector<std::byte> data = encode(c.dtype, values);
  const WeightSource source = memory_weight(c.dtype, c.rows, c.cols, data);
  const auto reference = make_reference_backend();
  const auto reference_weight = pack(*reference, source);
  const std::vector<float> expected = run(*reference, *reference_weight, c, x.data(), c.tokens, bias, residual);

  // A chunk of 256 terms rounds at most once per term (twice without fused multiply-add), then once per chunk, and
  // the bias and residual once each: Higham's bound on a sum, times the sum of the terms' magnitudes.
  std::vector<double> bound(expected.size());
  std::vector<float> row(static_cast<size_t>(c.cols));
  for (int64_t n = 0; n < c.rows; ++n) {
    reference_weight->decode_row(n, row.data());
    for (int64_t t = 0; t < c.tokens; ++t) {
      double magnitude = std::fabs(static_cast<double>(bias[static_cast<size_t>(n)])) +
                         std::fabs(static_cast<double>(residual[static_cast<size_t>(t * c.rows + n)]));
      for (int64_t k = 0; k < c.cols; ++k) {
        magnitude += std::fabs(static_cast<double>(row[static_cast<size_t>(k)]) *
                               static_cast<double>(x[static_cast<size_t>(t * c.cols + k)]));
      }
      const double roundings = static_cast<double>(std::min<int64_t>(c.cols, 256) + c.cols / 256 + 4);
      bound[static_cast<size_t>(t * c.rows + n)] = roundings * kUnit * magnitude;
    }
  }

  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
      const auto backend = cpu_backend(isa, threads);
      const auto weight = pack(*backend, source);
      const std::vector<float> y = run(*backend, *weight, c, x.data(), c.tokens, bias, residual);
      if (threads == 1) {
        first = y;
        CHECK(worst(y, expected, bound) <= 1.0);
        for (int64_t t = 0; t < c.tokens; ++t) {
          const std::vector<float> own(residual.begin() + t * c.rows, residual.begin() + (t + 1) * c.rows);
          const std::vector<float> alone = run(*backend, *weight, c, x.data() + t * c.cols, 1, bias, own);
          REQUIRE(std::memcmp(alone.data(), y.data() + t * c.rows, alone.size() * sizeof(float)) == 0);
        }
        std::vector<float> decoded(static_cast<size_t>(c.cols));
        for (int64_t n : {int64_t{0}, c.rows / 2, c.rows - 1}) {
          weight->decode_row(n, decoded.data());
          reference_weight->decode_row(n, row.data());
          CHECK(same_bits(decoded, row));
        }
      } else {
        CHECK(same_bits(y, first));
      }
    }
  }
}

}  // namespace

TEST_CASE("Float linear layers agree with the reference for odd shapes") {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    check({dtype, 1, 1, 1, false, false});
    check({dtype, 17, 3, 2, true, false});
    check({dtype, 128, 64, 1, false, true});
    check({dtype, 130, 257, 5, true, true});
    check({dtype, 300, 512, 13, false, false});
    check({dtype, 47, 600, 37, true, false});
    check({dtype, 16, 1025, 70, false, true});
  }
  for (int64_t tokens = 1; tokens <= 27; ++tokens) check({DType::kBF16, 50, 40, tokens, false, false});
  check({DType::kF16, 33, 70, 300, false, false});  // more than two blocks of rows
}

TEST_CASE("Several outputs share a row's input and keep their strides") {
  const std::vector<float> x = random_floats(3 * 64, 5);
  const std::vector<std::byte> a = encode(DType::kF32, random_floats(20 * 64, 6));
  const std::vector<std::byte> b = encode(DType::kBF16, random_floats(7 * 64, 7));
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    const auto wa = pack(*backend, memory_weight(DType::kF32, 20, 64, a));
    const auto wb = pack(*backend, memory_weight(DType::kBF16, 7, 64, b));
    std::vector<float> together(3 * 30, -1.0f), one(3 * 20), two(3 * 7);
    const LinearOutput outputs[] = {{wa.get(), nullptr, together.data(), 30, false},
                                    {wb.get(), nullptr, together.data() + 20, 30, false}};
    backend->linear({x.data(), 3, 64, outputs});
    const LinearOutput only_a{wa.get(), nullptr, one.data(), 20, false};
    const LinearOutput only_b{wb.get(), nullptr, two.data(), 7, false};
    backend->linear({x.data(), 3, 64, {&only_a, 1}});
    backend->linear({x.data(), 3, 64, {&only_b, 1}});
    for (size_t t = 0; t < 3; ++t) {
      CHECK(std::memcmp(&together[t * 30], &one[t * 20], 20 * sizeof(float)) == 0);
      CHECK(std::memcmp(&together[t * 30 + 20], &two[t * 7], 7 * sizeof(float)) == 0);
      for (size_t n = 27; n < 30; ++n) CHECK(together[t * 30 + n] == -1.0f);
    }
  }
}

TEST_CASE("Block formats can be kept in float32") {
  // Q8_0: a float16 scale and 32 codes.
  std::vector<std::byte> data(34 * 2 * 5);
  std::mt19937 generator(8);
  for (std::byte& byte : data) byte = static_cast<std::byte>(generator());
  for (size_t block = 0; block < 10; ++block) {
    const uint16_t scale = float_to_half(0.01f * static_cast<float>(block + 1));
    std::memcpy(data.data() + block * 34, &scale, 2);
  }
  const WeightSource source = memory_weight(DType::kQ8_0, 5, 64, data);
  const auto reference = make_reference_backend();
  const auto expected = pack(*reference, source);
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    PackOptions options;
    options.decode_to_float = true;
    const auto weight = pack(*backend, source, options);
    CHECK(weight->dtype() == DType::kQ8_0);
    std::vector<float> a(64), b(64);
    for (int64_t row = 0; row < 5; ++row) {
      weight->decode_row(row, a.data());
      expected->decode_row(row, b.data());
      CHECK(same_bits(a, b));
    }
  }
}

TEST_CASE("Weights that cannot be packed are refused") {
  const std::vector<std::byte> data(64);
  for (int which = 0; which < 2; ++which) {
    const auto backend = which == 0 ? make_reference_backend() : cpu_backend(kWeakestIsa, 2);
    CHECK(backend->pack(memory_weight(DType::kF32, 0, 4, data), {}).status().code() == StatusCode::kInvalidArgument);
    CHECK(backend->pack(memory_weight(DType::kF32, 4, -1, data), {}).status().code() == StatusCode::kInvalidArgument);
    CHECK(backend->pack(memory_weight(DType::kF32, int64_t{1} << 40, int64_t{1} << 40, data), {}).status().code() ==
          StatusCode::kInvalidArgument);
    const auto failed = backend->pack(memory_weight(DType::kF32, 8, 8, data), {});  // the source is too short
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.status().code() == StatusCode::kIo);
    CHECK(failed.status().place().find("weight") != std::string::npos);
  }
  const auto cpu = cpu_backend(kWeakestIsa, 1);
  CHECK(cpu->pack(memory_weight(DType::kI32, 4, 4, data), {}).status().code() == StatusCode::kUnsupported);
  CHECK_FALSE(make_cpu_backend({kWeakestIsa, 0}).ok());
}

}  // namespace headrace::test
