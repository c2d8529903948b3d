// Every element type decodes random bytes to exactly the values that PyPI's gguf, or NumPy, gives
// (tests/data/dequantize, written by tests/data/generate_dequantize.py): bit for bit, and NaN for NaN.
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace headrace {
namespace {

struct Fixture {
  uint32_t elements = 0;
  std::vector<char> bytes;
  std::vector<float> values;
};

Fixture load(std::string_view name) {
  std::ifstream file(std::string(HEADRACE_SOURCE_DIR "/tests/data/dequantize/") + std::string(name) + ".bin",
                     std::ios::binary);
  REQUIRE(file.good());
  Fixture fixture;
  uint32_t size = 0;
  file.read(reinterpret_cast<char*>(&fixture.elements), 4);
  file.read(reinterpret_cast<char*>(&size), 4);
  fixture.bytes.resize(size);
  file.read(fixture.bytes.data(), size);
  fixture.values.resize(fixture.elements);
  file.read(reinterpret_cast<char*>(fixture.values.data()), static_cast<std::streamsize>(fixture.elements) * 4);
  REQUIRE(file.good());
  return fixture;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST_CASE("every type decodes to the oracle's bits", "[dequantize]") {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const DTypeInfo& info = dtype_info(static_cast<DType>(i));
    CAPTURE(info.name);
    const Fixture fixture = load(info.name);
    REQUIRE(row_bytes(info.dtype, fixture.elements) == fixture.bytes.size());
    // Odd addresses too: a block may lie anywhere in a mapped file.
    for (size_t shift : {0u, 1u}) {
      std::vector<char> shifted(fixture.bytes.size() + shift);
      std::memcpy(shifted.data() + shift, fixture.bytes.data(), fixture.bytes.size());
      std::vector<float> out(fixture.elements, -77.0f);
      REQUIRE(dequantize_row(info.dtype, shifted.data() + shift, out.data(), fixture.elements).ok());
      for (uint32_t e = 0; e < fixture.elements; ++e) {
        if (!same(out[e], fixture.values[e])) {
          FAIL("element " << e << ": " << out[e] << " where the oracle has " << fixture.values[e]);
        }
      }
    }
  }
}

TEST_CASE("only whole blocks decode", "[dequantize]") {
  float out[32] = {};
  const char bytes[64] = {};
  REQUIRE(dequantize_row(DType::kQ4_0, bytes, out, 0).ok());
  REQUIRE(dequantize_row(DType::kQ4_0, bytes, out, 31).code() == StatusCode::kInvalidArgument);
  REQUIRE(dequantize_row(DType::kQ4_0, bytes, out, -32).code() == StatusCode::kInvalidArgument);
  REQUIRE(dequantize_row(DType::kCount, bytes, out, 1).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("half precision goes through every value and back", "[half]") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      REQUIRE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      REQUIRE(float_to_half(value) == half);
    }
    if (!std::isnan(bfloat16_to_float(half))) REQUIRE(float_to_bfloat16(bfloat16_to_float(half)) == half);
  }
}

TEST_CASE("type numbers are a bijection and sizes fit the layouts", "[dtype]") {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const DTypeInfo& info = dtype_info(static_cast<DType>(i));
    if (info.ggml_type >= 0) REQUIRE(dtype_from_ggml(static_cast<uint32_t>(info.ggml_type)) == info.dtype);
  }
  for (uint32_t removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 0xffffffffu}) {
    REQUIRE_FALSE(dtype_from_ggml(removed).has_value());
  }
  REQUIRE(row_bytes(DType::kQ4_K, 512) == 288u);
  REQUIRE_FALSE(row_bytes(DType::kQ4_K, 255).has_value());
  REQUIRE_FALSE(row_bytes(DType::kF64, UINT64_MAX / 4).has_value());
}

}  // namespace
}  // namespace headrace
