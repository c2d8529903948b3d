// Blocks with one scale (and one minimum): Q1_0 to Q8_1, and the ternary formats.
#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"

namespace headrace {

void decode_block(const BlockQ1_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 128; ++e) out[e] = (block.qs[e / 8] >> (e % 8)) & 1 ? d : -d;
}

void decode_block(const BlockQ2_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 64; ++e) {
    const int q = (block.qs[e / 4] >> (2 * (e % 4))) & 3;
    out[e] = d * static_cast<float>(q - 1);
  }
}

void decode_block(const BlockQ4_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((block.qs[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((block.qs[j] >> 4) - 8);
  }
}

void decode_block(const BlockQ4_1& block, float* out) {
  const float d = half_to_float(block.d);
  const float m = half_to_float(block.m);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(block.qs[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(block.qs[j] >> 4) + m;
  }
}

void decode_block(const BlockQ5_0& block, float* out) {
  const float d = half_to_float(block.d);
  const uint32_t qh = block.qh;
  for (int j = 0; j < 16; ++j) {
    const int low = (block.qs[j] & 15) | static_cast<int>(((qh >> j) & 1) << 4);
    const int high = (block.qs[j] >> 4) | static_cast<int>(((qh >> (j + 16)) & 1) << 4);
    out[j] = d * static_cast<float>(low - 16);
    out[j + 16] = d * static_cast<float>(high - 16);
  }
}

void decode_block(const BlockQ5_1& block, float* out) {
  const float d = half_to_float(block.d);
  const float m = half_to_float(block.m);
  const uint32_t qh = block.qh;
  for (int j = 0; j < 16; ++j) {
    const int low = (block.qs[j] & 15) | static_cast<int>(((qh >> j) & 1) << 4);
    const int high = (block.qs[j] >> 4) | static_cast<int>(((qh >> (j + 16)) & 1) << 4);
    out[j] = d * static_cast<float>(low) + m;
    out[j + 16] = d * static_cast<float>(high) + m;
  }
}

void decode_block(const BlockQ8_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 32; ++e) out[e] = d * static_cast<float>(block.qs[e]);
}

void decode_block(const BlockQ8_1& block, float* out) {
  const float d = half_to_float(block.d);
  for (int e = 0; e < 32; ++e) out[e] = d * static_cast<float>(block.qs[e]);
}

// A byte b holds ternary digits as the fraction b / 256 in base 3: multiplying by 3^n drops the first n
// digits, and the whole part of three times what is left is the next one.
static float ternary_digit(uint8_t byte, int n) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const uint8_t rest = static_cast<uint8_t>(byte * kPowers[n]);
  return static_cast<float>(((rest * 3) >> 8) - 1);
}

void decode_block(const BlockTQ1_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int n = 0; n < 5; ++n) {
    for (int j = 0; j < 32; ++j) *out++ = d * ternary_digit(block.qs[j], n);
  }
  for (int n = 0; n < 5; ++n) {
    for (int j = 32; j < 48; ++j) *out++ = d * ternary_digit(block.qs[j], n);
  }
  for (int n = 0; n < 4; ++n) {
    for (int j = 0; j < 4; ++j) *out++ = d * ternary_digit(block.qh[j], n);
  }
}

void decode_block(const BlockTQ2_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int half = 0; half < 2; ++half) {
    for (int shift = 0; shift < 8; shift += 2) {
      for (int j = 0; j < 32; ++j) {
        *out++ = d * static_cast<float>(((block.qs[32 * half + j] >> shift) & 3) - 1);
      }
    }
  }
}

}  // namespace headrace
