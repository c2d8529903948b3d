// One function per block format: decodes a block into its elements. Used by dequantize.cpp.
#pragma once

#include "tensor/block_formats.h"

namespace headrace {

void decode_block(const BlockQ1_0& block, float* out);
void decode_block(const BlockQ2_0& block, float* out);
void decode_block(const BlockQ4_0& block, float* out);
void decode_block(const BlockQ4_1& block, float* out);
void decode_block(const BlockQ5_0& block, float* out);
void decode_block(const BlockQ5_1& block, float* out);
void decode_block(const BlockQ8_0& block, float* out);
void decode_block(const BlockQ8_1& block, float* out);

void decode_block(const BlockQ2_K& block, float* out);
void decode_block(const BlockQ3_K& block, float* out);
void decode_block(const BlockQ4_K& block, float* out);
void decode_block(const BlockQ5_K& block, float* out);
void decode_block(const BlockQ6_K& block, float* out);
void decode_block(const BlockQ8_K& block, float* out);

void decode_block(const BlockIQ1_S& block, float* out);
void decode_block(const BlockIQ1_M& block, float* out);
void decode_block(const BlockIQ2_XXS& block, float* out);
void decode_block(const BlockIQ2_XS& block, float* out);
void decode_block(const BlockIQ2_S& block, float* out);
void decode_block(const BlockIQ3_XXS& block, float* out);
void decode_block(const BlockIQ3_S& block, float* out);
void decode_block(const BlockIQ4_NL& block, float* out);
void decode_block(const BlockIQ4_XS& block, float* out);

void decode_block(const BlockTQ1_0& block, float* out);
void decode_block(const BlockTQ2_0& block, float* out);
void decode_block(const BlockMXFP4& block, float* out);
void decode_block(const BlockNVFP4& block, float* out);
// Sixteen elements of NVFP4 under one scale: low halves of eight bytes, then the high ones.
void decode_nvfp4(const uint8_t* qs, float scale, float* out);

void decode_block(const BlockInt4<32>& block, float* out);
void decode_block(const BlockInt4<128>& block, float* out);
void decode_block(const BlockInt8<32>& block, float* out);
void decode_block(const BlockInt8<128>& block, float* out);
void decode_block(const BlockFp8<32>& block, float* out);
void decode_block(const BlockFp8<128>& block, float* out);
void decode_block(const BlockNf4& block, float* out);
void decode_block(const BlockScaledNvfp4& block, float* out);

}  // namespace headrace
