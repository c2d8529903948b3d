#include "tensor/dequantize.h"

#include <cstring>

#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"

namespace headrace {
namespace {

template <class Element, class Convert>
void convert_all(const void* src, float* dst, int64_t count, Convert convert) {
  const char* bytes = static_cast<const char*>(src);
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, bytes + i * static_cast<int64_t>(sizeof element), sizeof element);  // any alignment
    dst[i] = convert(element);
  }
}

template <class Block>
void decode_all(const void* src, float* dst, int64_t count, int64_t block_size) {
  const Block* blocks = static_cast<const Block*>(src);  // alignment 1
  for (int64_t i = 0; i < count / block_size; ++i) decode_block(blocks[i], dst + i * block_size);
}

}  // namespace

Status dequantize_row(DType dtype, const void* src, float* dst, int64_t num_elements) {
  if (dtype < DType::kF32 || dtype >= DType::kCount) return invalid_argument("dtype", "is no element type");
  const int64_t block = dtype_info(dtype).block_size;
  if (num_elements < 0 || num_elements % block != 0) {
    return invalid_argument("num_elements", "{} is no whole number of {}'s blocks of {}", num_elements,
                            dtype_name(dtype), block);
  }
  const auto cast = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case DType::kF32:
      if (num_elements > 0) std::memcpy(dst, src, static_cast<size_t>(num_elements) * sizeof(float));
      break;
    case DType::kF16: convert_all<uint16_t>(src, dst, num_elements, half_to_float); break;
    case DType::kBF16: convert_all<uint16_t>(src, dst, num_elements, bfloat16_to_float); break;
    case DType::kF64: convert_all<double>(src, dst, num_elements, cast); break;
    case DType::kI8: convert_all<int8_t>(src, dst, num_elements, cast); break;
    case DType::kI16: convert_all<int16_t>(src, dst, num_elements, cast); break;
    case DType::kI32: convert_all<int32_t>(src, dst, num_elements, cast); break;
    case DType::kI64: convert_all<int64_t>(src, dst, num_elements, cast); break;
    case DType::kQ1_0: decode_all<BlockQ1_0>(src, dst, num_elements, block); break;
    case DType::kQ2_0: decode_all<BlockQ2_0>(src, dst, num_elements, block); break;
    case DType::kQ4_0: decode_all<BlockQ4_0>(src, dst, num_elements, block); break;
    case DType::kQ4_1: decode_all<BlockQ4_1>(src, dst, num_elements, block); break;
    case DType::kQ5_0: decode_all<BlockQ5_0>(src, dst, num_elements, block); break;
    case DType::kQ5_1: decode_all<BlockQ5_1>(src, dst, num_elements, block); break;
    case DType::kQ8_0: decode_all<BlockQ8_0>(src, dst, num_elements, block); break;
    case DType::kQ8_1: decode_all<BlockQ8_1>(src, dst, num_elements, block); break;
    case DType::kQ2_K: decode_all<BlockQ2_K>(src, dst, num_elements, block); break;
    case DType::kQ3_K: decode_all<BlockQ3_K>(src, dst, num_elements, block); break;
    case DType::kQ4_K: decode_all<BlockQ4_K>(src, dst, num_elements, block); break;
    case DType::kQ5_K: decode_all<BlockQ5_K>(src, dst, num_elements, block); break;
    case DType::kQ6_K: decode_all<BlockQ6_K>(src, dst, num_elements, block); break;
    case DType::kQ8_K: decode_all<BlockQ8_K>(src, dst, num_elements, block); break;
    case DType::kIQ1_S: decode_all<BlockIQ1_S>(src, dst, num_elements, block); break;
    case DType::kIQ1_M: decode_all<BlockIQ1_M>(src, dst, num_elements, block); break;
    case DType::kIQ2_XXS: decode_all<BlockIQ2_XXS>(src, dst, num_elements, block); break;
    case DType::kIQ2_XS: decode_all<BlockIQ2_XS>(src, dst, num_elements, block); break;
    case DType::kIQ2_S: decode_all<BlockIQ2_S>(src, dst, num_elements, block); break;
    case DType::kIQ3_XXS: decode_all<BlockIQ3_XXS>(src, dst, num_elements, block); break;
    case DType::kIQ3_S: decode_all<BlockIQ3_S>(src, dst, num_elements, block); break;
    case DType::kIQ4_NL: decode_all<BlockIQ4_NL>(src, dst, num_elements, block); break;
    case DType::kIQ4_XS: decode_all<BlockIQ4_XS>(src, dst, num_elements, block); break;
    case DType::kTQ1_0: decode_all<BlockTQ1_0>(src, dst, num_elements, block); break;
    case DType::kTQ2_0: decode_all<BlockTQ2_0>(src, dst, num_elements, block); break;
    case DType::kMXFP4: decode_all<BlockMXFP4>(src, dst, num_elements, block); break;
    case DType::kNVFP4: decode_all<BlockNVFP4>(src, dst, num_elements, block); break;
    case DType::kINT4_G32: decode_all<BlockInt4<32>>(src, dst, num_elements, block); break;
    case DType::kINT4_G128: decode_all<BlockInt4<128>>(src, dst, num_elements, block); break;
    case DType::kINT8_G32: decode_all<BlockInt8<32>>(src, dst, num_elements, block); break;
    case DType::kINT8_G128: decode_all<BlockInt8<128>>(src, dst, num_elements, block); break;
    case DType::kFP8_G32: decode_all<BlockFp8<32>>(src, dst, num_elements, block); break;
    case DType::kFP8_G128: decode_all<BlockFp8<128>>(src, dst, num_elements, block); break;
    case DType::kNF4_G64: decode_all<BlockNf4>(src, dst, num_elements, block); break;
    case DType::kNVFP4_G64: decode_all<BlockScaledNvfp4>(src, dst, num_elements, block); break;
    case DType::kU8: convert_all<uint8_t>(src, dst, num_elements, cast); break;
    case DType::kF8_E4M3: convert_all<uint8_t>(src, dst, num_elements, e4m3_to_float); break;
    case DType::kCount: break;
  }
  return Status();
}

}  // namespace headrace
