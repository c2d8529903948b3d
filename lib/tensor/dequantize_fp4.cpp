// FP4 (E2M1) elements under 8-bit floating scales: MXFP4 (OCP microscaling) and NVFP4.
#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"
#include "tensor/iq_grids.h"

namespace headrace {

void decode_block(const BlockMXFP4& block, float* out) {
  const float scale = e8m0_half_to_float(block.e);
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * static_cast<float>(kFp4DoubledValues[block.qs[j] & 15]);
    out[j + 16] = scale * static_cast<float>(kFp4DoubledValues[block.qs[j] >> 4]);
  }
}

void decode_nvfp4(const uint8_t* qs, float scale, float* out) {
  const float half = scale * 0.5f;
  for (int j = 0; j < 8; ++j) {
    out[j] = half * static_cast<float>(kFp4DoubledValues[qs[j] & 15]);
    out[j + 8] = half * static_cast<float>(kFp4DoubledValues[qs[j] >> 4]);
  }
}

void decode_block(const BlockNVFP4& block, float* out) {
  for (int sub = 0; sub < 4; ++sub) decode_nvfp4(block.qs + 8 * sub, ue4m3_to_float(block.d[sub]), out + 16 * sub);
}

}  // namespace headrace
