// Element types: plain ones, the block formats of GGUF files, and those that quantized checkpoints of Hugging Face
// folders are brought into (layouts in docs/formats.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

// Plain types first, then GGUF's block types under GGML's names, then those of quantized checkpoints: groups of so many
// elements of a row with a float32 scale.
enum class DType : int32_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kI16,
  kI32,
  kI64,
  kQ1_0,
  kQ2_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ8_K,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kINT4_G32,
  kINT4_G128,
  kINT8_G32,
  kINT8_G128,
  kFP8_G32,
  kFP8_G128,
  kNF4_G64,
  kNVFP4_G64,
  // Plain types of safetensors files that are parts of quantized weights.
  kU8,
  kF8_E4M3,
  kCount,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // "F32", "Q4_K"
  int32_t block_size;     // elements in one block, 1 for plain types
  int32_t block_bytes;    // bytes of one block
  int32_t ggml_type;      // number in GGUF files, -1 where GGUF has none
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }
// True for types whose values are stored in blocks with scales.
inline bool is_block_format(DType dtype) { return dtype_info(dtype).block_size > 1; }
// Block formats whose elements are floats, of too wide a range for products of integers.
inline bool is_scaled_float(DType dtype) {
  return dtype == DType::kFP8_G32 || dtype == DType::kFP8_G128 || dtype == DType::kNF4_G64;
}

std::optional<DType> dtype_from_ggml(uint32_t ggml_type);

// Bytes of `num_elements` along a row, or nothing when that is no whole number of blocks or does not fit.
std::optional<uint64_t> row_bytes(DType dtype, uint64_t num_elements);

}  // namespace headrace
