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

void decode_block(const BlockNVFP4& block, float* out) {
  for (int sub = 0; sub < 4; ++sub, out += 16) {
    const float scale = ue4m3_to_float(block.d[sub]) * 0.5f;
    for (int j = 0; j < 8; ++j) {
      const uint8_t q = block.qs[8 * sub + j];
      out[j] = scale * static_cast<float>(kFp4DoubledValues[q & 15]);
      out[j + 8] = scale * static_cast<float>(kFp4DoubledValues[q >> 4]);
    }
  }
}

}  // namespace headrace
