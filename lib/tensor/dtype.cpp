#include "tensor/dtype.h"

#include <array>

#include "base/checked.h"

namespace headrace {
namespace {

// Numbers of the type field: gguf/constants.py of PyPI's gguf 0.19 (GGMLQuantizationType, GGML_QUANT_SIZES).
constexpr std::array<DTypeInfo, static_cast<size_t>(DType::kCount)> kInfo = {{
    {DType::kF32, "F32", 1, 4, 0},
    {DType::kF16, "F16", 1, 2, 1},
    {DType::kBF16, "BF16", 1, 2, 30},
    {DType::kF64, "F64", 1, 8, 28},
    {DType::kI8, "I8", 1, 1, 24},
    {DType::kI16, "I16", 1, 2, 25},
    {DType::kI32, "I32", 1, 4, 26},
    {DType::kI64, "I64", 1, 8, 27},
    {DType::kQ1_0, "Q1_0", 128, 18, 41},
    {DType::kQ2_0, "Q2_0", 64, 18, 42},
    {DType::kQ4_0, "Q4_0", 32, 18, 2},
    {DType::kQ4_1, "Q4_1", 32, 20, 3},
    {DType::kQ5_0, "Q5_0", 32, 22, 6},
    {DType::kQ5_1, "Q5_1", 32, 24, 7},
    {DType::kQ8_0, "Q8_0", 32, 34, 8},
    {DType::kQ8_1, "Q8_1", 32, 36, 9},
    {DType::kQ2_K, "Q2_K", 256, 84, 10},
    {DType::kQ3_K, "Q3_K", 256, 110, 11},
    {DType::kQ4_K, "Q4_K", 256, 144, 12},
    {DType::kQ5_K, "Q5_K", 256, 176, 13},
    {DType::kQ6_K, "Q6_K", 256, 210, 14},
    {DType::kQ8_K, "Q8_K", 256, 292, 15},
    {DType::kIQ1_S, "IQ1_S", 256, 50, 19},
    {DType::kIQ1_M, "IQ1_M", 256, 56, 29},
    {DType::kIQ2_XXS, "IQ2_XXS", 256, 66, 16},
    {DType::kIQ2_XS, "IQ2_XS", 256, 74, 17},
    {DType::kIQ2_S, "IQ2_S", 256, 82, 22},
    {DType::kIQ3_XXS, "IQ3_XXS", 256, 98, 18},
    {DType::kIQ3_S, "IQ3_S", 256, 110, 21},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18, 20},
    {DType::kIQ4_XS, "IQ4_XS", 256, 136, 23},
    {DType::kTQ1_0, "TQ1_0", 256, 54, 34},
    {DType::kTQ2_0, "TQ2_0", 256, 66, 35},
    {DType::kMXFP4, "MXFP4", 32, 17, 39},
    {DType::kNVFP4, "NVFP4", 64, 36, 40},
    {DType::kINT4_G32, "INT4_G32", 32, 21, -1},
    {DType::kINT4_G128, "INT4_G128", 128, 69, -1},
    {DType::kINT8_G32, "INT8_G32", 32, 38, -1},
    {DType::kINT8_G128, "INT8_G128", 128, 134, -1},
    {DType::kFP8_G32, "FP8_G32", 32, 36, -1},
    {DType::kFP8_G128, "FP8_G128", 128, 132, -1},
    {DType::kNF4_G64, "NF4_G64", 64, 36, -1},
    {DType::kNVFP4_G64, "NVFP4_G64", 64, 40, -1},
    {DType::kU8, "U8", 1, 1, -1},
    {DType::kF8_E4M3, "F8_E4M3", 1, 1, -1},
}};

constexpr bool info_in_order() {
  for (size_t i = 0; i < kInfo.size(); ++i) {
    if (static_cast<size_t>(kInfo[i].dtype) != i) return false;
  }
  return true;
}
static_assert(info_in_order());

}  // namespace

const DTypeInfo& dtype_info(DType dtype) { return kInfo[static_cast<size_t>(dtype)]; }

std::optional<DType> dtype_from_ggml(uint32_t ggml_type) {
  for (const DTypeInfo& info : kInfo) {
    if (info.ggml_type >= 0 && static_cast<uint32_t>(info.ggml_type) == ggml_type) return info.dtype;
  }
  return std::nullopt;
}

std::optional<uint64_t> row_bytes(DType dtype, uint64_t num_elements) {
  const DTypeInfo& info = dtype_info(dtype);
  const uint64_t block_size = static_cast<uint64_t>(info.block_size);
  if (num_elements % block_size != 0) return std::nullopt;
  return checked_mul<uint64_t>(num_elements / block_size, static_cast<uint64_t>(info.block_bytes));
}

}  // namespace headrace
