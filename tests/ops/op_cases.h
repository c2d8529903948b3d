// What the op tests share: random arrays, weights from memory, and every available CPU backend.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "ops/backend.h"
#include "tensor/half.h"

namespace headrace::test {

// Unit roundoff of float32.
constexpr double kUnit = 0x1p-24;

inline std::vector<float> random_floats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

inline std::unique_ptr<Backend> cpu_backend(Isa isa, int num_threads) {
  auto backend = make_cpu_backend({isa, num_threads});
  REQUIRE(backend.ok());
  return backend.take();
}

// A float array as the bytes of a plain dtype.
inline std::vector<std::byte> encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out;
  for (float value : values) {
    std::byte bytes[4];
    size_t size = 4;
    if (dtype == DType::kF32) {
      std::memcpy(bytes, &value, 4);
    } else {
      const uint16_t bits = dtype == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
      std::memcpy(bytes, &bits, 2);
      size = 2;
    }
    out.insert(out.end(), bytes, bytes + size);
  }
  return out;
}

// `data` must outlive the source.
inline WeightSource memory_weight(DType dtype, int64_t rows, int64_t cols, const std::vector<std::byte>& data) {
  WeightSource source;
  source.name = "weight";
  source.dtype = dtype;
  source.rows = rows;
  source.cols = cols;
  source.read = [&data](uint64_t offset, std::span<std::byte> destination) {
    if (offset > data.size() || destination.size() > data.size() - offset) {
      return io_error("weight", "range leaves the data");
    }
    std::memcpy(destination.data(), data.data() + offset, destination.size());
    return Status();
  };
  return source;
}

inline std::unique_ptr<PackedWeight> pack(Backend& backend, const WeightSource& source, PackOptions options = {}) {
  auto packed = backend.pack(source, options);
  INFO(packed.status().to_string());
  REQUIRE(packed.ok());
  return packed.take();
}

// Equal bit for bit, NaN and the sign of zero included.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The largest of |a - b| / bound; NaN counts as infinite.
inline double worst(const std::vector<float>& a, const std::vector<float>& b, const std::vector<double>& bound) {
  double out = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= bound[i])) out = std::isfinite(difference) ? std::max(out, difference / bound[i]) : INFINITY;
    if (difference > 0.0) out = std::max(out, difference / bound[i]);
  }
  return out;
}

}  // namespace headrace::test
