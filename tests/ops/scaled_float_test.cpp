// Weights of FP8 and NF4 under scales: every code decoded, and products with the bits of products with decoded weights.
#include "op_cases.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"

namespace headrace::test {
namespace {

constexpr DType kTypes[] = {DType::kFP8_G32, DType::kFP8_G128, DType::kNF4_G64};

// Random codes (no NaN) and scales of either sign, subnormal results among them.
std::vector<std::byte> random_weight(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> data(*row_bytes(dtype, static_cast<uint64_t>(cols)) * static_cast<uint64_t>(rows));
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(generator());
    if ((byte & std::byte{0x7f}) == std::byte{0x7f}) byte = std::byte{0x2a};
  }
  const auto block = static_cast<size_t>(dtype_info(dtype).block_bytes);
  for (size_t at = 0; at < data.size(); at += block) {
    const float scale = std::ldexp(static_cast<float>(generator() % 1000 + 1), -static_cast<int>(generator() % 24)) / 3;
    std::memcpy(data.data() + at, &scale, sizeof scale);
  }
  return data;
}

std::vector<float> run(Backend& backend, const PackedWeight& weight, const std::vector<float>& x, int64_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * weight.rows()), 0.5f);
  const std::vector<float> bias = random_floats(static_cast<size_t>(weight.rows()), 3);
  const LinearOutput output{&weight, bias.data(), y.data(), weight.rows(), true};
  backend.linear({x.data(), tokens, weight.cols(), {&output, 1}});
  return y;
}

}  // namespace

TEST_CASE("E4M3 codes stand for the values of their bits") {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(1.0f + static_cast<float>(mantissa) / 8, exponent - 7);
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
    } else {
      CHECK(same_bits({value}, {code & 0x80 ? -magnitude : magnitude}));
    }
  }
}

TEST_CASE("Products with scaled floats have the bits of products with decoded weights") {
  for (const DType dtype : kTypes) {
    for (const int64_t rows : {1, 16, 17, 70}) {
      for (const int64_t cols : {128, 384, 640}) {
        INFO(dtype_name(dtype) << " [" << rows << ", " << cols << "]");
        const std::vector<std::byte> data = random_weight(dtype, rows, cols, static_cast<uint32_t>(rows + cols));
        std::vector<float> values(static_cast<size_t>(rows * cols));
        REQUIRE(dequantize_row(dtype, data.data(), values.data(), rows * cols).ok());
        const std::vector<std::byte> decoded = encode(DType::kF32, values);
        const std::vector<float> x = random_floats(static_cast<size_t>(300 * cols), 2);
        for (const Isa isa : available_isas()) {
          for (const int threads : {1, 3}) {
            const auto backend = cpu_backend(isa, threads);
            const auto weight = pack(*backend, memory_weight(dtype, rows, cols, data));
            const auto expected = pack(*backend, memory_weight(DType::kF32, rows, cols, decoded));
            CHECK(weight->bytes() <= data.size() / static_cast<size_t>(rows) * static_cast<size_t>(rows + 15) + 63);
            for (const int64_t tokens : {1, 2, 7, 13, 150, 300}) {
              INFO(isa_name(isa) << " threads " << threads << " tokens " << tokens);
              CHECK(same_bits(run(*backend, *weight, x, tokens), run(*backend, *expected, x, tokens)));
            }
            std::vector<float> row(static_cast<size_t>(cols));
            weight->decode_row(rows - 1, row.data());
            CHECK(same_bits(row, {values.end() - cols, values.end()}));
          }
        }
      }
    }
  }
}

}  // namespace headrace::test
