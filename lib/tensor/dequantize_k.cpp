// The K formats: 256 elements whose sub-blocks have quantized scales.
#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"

namespace headrace {

void decode_block(const BlockQ2_K& block, float* out) {
  const float d = half_to_float(block.d);
  const float dmin = half_to_float(block.dmin);
  for (int e = 0; e < 256; ++e) {
    const uint8_t packed = block.scales[e / 16];
    const float scale = d * static_cast<float>(packed & 15);
    const float minimum = dmin * static_cast<float>(packed >> 4);
    const int q = (block.qs[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4))) & 3;
    out[e] = scale * static_cast<float>(q) - minimum;
  }
}

void decode_block(const BlockQ3_K& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 256; ++e) {
    const float scale = d * static_cast<float>(q3_k_scale(block.scales, e / 16));
    const int low = (block.qs[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4))) & 3;
    const int q = (block.hmask[e % 32] >> (e / 32)) & 1 ? low : low - 4;
    out[e] = scale * static_cast<float>(q);
  }
}

void decode_block(const BlockQ4_K& block, float* out) {
  const float d = half_to_float(block.d);
  const float dmin = half_to_float(block.dmin);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = k_scale_min(block.scales, j);
    const float scale = d * static_cast<float>(packed.scale);
    const float minimum = dmin * static_cast<float>(packed.min);
    for (int l = 0; l < 32; ++l) {
      const int q = (block.qs[32 * (j / 2) + l] >> (4 * (j % 2))) & 15;
      *out++ = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_block(const BlockQ5_K& block, float* out) {
  const float d = half_to_float(block.d);
  const float dmin = half_to_float(block.dmin);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = k_scale_min(block.scales, j);
    const float scale = d * static_cast<float>(packed.scale);
    const float minimum = dmin * static_cast<float>(packed.min);
    for (int l = 0; l < 32; ++l) {
      const int low = (block.qs[32 * (j / 2) + l] >> (4 * (j % 2))) & 15;
      const int q = low | (((block.qh[l] >> j) & 1) << 4);
      *out++ = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_block(const BlockQ6_K& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int run = e / 32 % 4;  // of 32 elements: 0, 1 in low nibbles, 2, 3 in high ones
    const int l = e % 32;
    const int low = (block.ql[64 * half + 32 * (run % 2) + l] >> (4 * (run / 2))) & 15;
    const int high = (block.qh[32 * half + l] >> (2 * run)) & 3;
    const float scale = d * static_cast<float>(block.scales[e / 16]);
    out[e] = scale * static_cast<float>((low | (high << 4)) - 32);
  }
}

void decode_block(const BlockQ8_K& block, float* out) {
  const float d = block.d;
  for (int e = 0; e < 256; ++e) out[e] = d * static_cast<float>(block.qs[e]);
}

}  // namespace headrace
