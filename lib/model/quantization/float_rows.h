// Weights of FP8 and FP4 under scales, row by row.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "model/quantization/module_parts.h"

namespace headrace {

// codes: F8_E4M3 [rows, cols]. scales, which codes are multiplied by: one, [rows] or [rows, 1], or one for each block of
// block_rows x block_cols (0: there are none): [ceil(rows / block_rows), ceil(cols / block_cols)].
Status add_fp8(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
               const TensorEntry& scales, uint64_t block_rows, uint64_t block_cols,
               std::initializer_list<std::string_view> suffixes);

// codes: U8 [rows, cols / 2], two E2M1 in a byte, the first in its low half. scales: F8_E4M3 [rows, cols / 16]. global: one
// float32 that the scales are multiplied, or divided, by.
Status add_nvfp4(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
                 const TensorEntry& scales, const TensorEntry& global, bool divides,
                 std::initializer_list<std::string_view> suffixes);

// codes: U8 [..., cols / 32, 16] or [..., cols / 2] as above; scales: U8 [..., cols / 32], powers of two (E8M0).
Status add_mxfp4(QuantizedModules& modules, const std::string& module, const TensorEntry& codes,
                 const TensorEntry& scales, std::initializer_list<std::string_view> suffixes);

}  // namespace headrace
