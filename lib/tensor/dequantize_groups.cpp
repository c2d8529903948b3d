// Groups of quantized checkpoints: integers with a zero point, FP8, NF4 and NVFP4, each under a float32 scale.
#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"
#include "tensor/iq_grids.h"
#include "tensor/nf4.h"

namespace headrace {
namespace {

template <int kGroup>
void decode(const BlockInt4<kGroup>& block, float* out) {
  const int zero = block.zero;
  for (int sub = 0; sub < kGroup; sub += 32) {
    for (int j = 0; j < 16; ++j) {
      const uint8_t q = block.qs[sub / 2 + j];
      out[sub + j] = block.d * static_cast<float>((q & 15) - zero);
      out[sub + j + 16] = block.d * static_cast<float>((q >> 4) - zero);
    }
  }
}

template <int kGroup>
void decode(const BlockInt8<kGroup>& block, float* out) {
  for (int e = 0; e < kGroup; ++e) out[e] = block.d * static_cast<float>(block.qs[e] - block.zero);
}

template <int kGroup>
void decode(const BlockFp8<kGroup>& block, float* out) {
  for (int e = 0; e < kGroup; ++e) out[e] = block.d * e4m3_to_float(block.qs[e]);
}

}  // namespace

void decode_block(const BlockInt4<32>& block, float* out) { decode(block, out); }
void decode_block(const BlockInt4<128>& block, float* out) { decode(block, out); }
void decode_block(const BlockInt8<32>& block, float* out) { decode(block, out); }
void decode_block(const BlockInt8<128>& block, float* out) { decode(block, out); }
void decode_block(const BlockFp8<32>& block, float* out) { decode(block, out); }
void decode_block(const BlockFp8<128>& block, float* out) { decode(block, out); }

void decode_block(const BlockNf4& block, float* out) {
  for (int j = 0; j < 32; ++j) {
    out[j] = block.d * kNf4Values[block.qs[j] & 15];
    out[j + 32] = block.d * kNf4Values[block.qs[j] >> 4];
  }
}

void decode_block(const BlockScaledNvfp4& block, float* out) {
  for (int sub = 0; sub < 4; ++sub) {
    decode_nvfp4(block.qs + 8 * sub, scaled_ue4m3(block.d[sub], block.scale), out + 16 * sub);
  }
}

}  // namespace headrace
