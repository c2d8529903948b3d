// Weights for tests of choices: bytes that are good in every format.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "cpu/packed_quantized.h"

namespace tuning_test {

using namespace headrace;

// Bytes whose float16 fields are small and finite wherever they lie: the top bit of each odd byte's exponent is clear.
inline WeightSource make_source(DType dtype, int64_t rows, int64_t cols) {
  return {"weight", dtype, rows, cols, [](uint64_t offset, std::span<std::byte> to) {
            for (size_t i = 0; i < to.size(); ++i) {
              const uint64_t mixed = (offset + i + 1) * 0x9e3779b97f4a7c15ull;
              to[i] = static_cast<std::byte>((mixed >> 56) & 0xbf);
            }
            return Status();
          }};
}

inline std::unique_ptr<CpuPackedWeight> make_weight(DType dtype, int64_t rows, int64_t cols, ThreadPool& pool,
                                                    ActivationType type = ActivationType::kInt8) {
  PackOptions options;
  options.activations = type;
  auto packed = pack_quantized(make_source(dtype, rows, cols), options, {}, pool);
  if (!packed.ok()) FAIL(packed.status().to_string());
  return packed.take();
}

}  // namespace tuning_test
