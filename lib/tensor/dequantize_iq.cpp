// The IQ formats: groups of 8 or 4 elements are entries of fixed grids, with packed signs and scales.
#include "tensor/dequantize_blocks.h"
#include "tensor/half.h"
#include "tensor/iq_grids.h"

namespace headrace {
namespace {

// `count` elements from a grid entry's unsigned bytes, those with a set sign bit negated.
template <class Word>
void write_signed(float scale, Word grid, uint32_t signs, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    const float value = scale * static_cast<float>((grid >> (8 * i)) & 255);
    out[i] = (signs >> i) & 1 ? -value : value;
  }
}

// Eight elements of the ternary grid, shifted by delta.
void write_ternary(float scale, uint64_t grid, float delta, float* out) {
  for (int i = 0; i < 8; ++i) {
    const int8_t value = static_cast<int8_t>((grid >> (8 * i)) & 255);
    out[i] = scale * (static_cast<float>(value) + delta);
  }
}

}  // namespace

void decode_block(const BlockIQ2_XXS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t indices = block.qs[2 * sub];
    const uint32_t packed = block.qs[2 * sub + 1];
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
    for (int g = 0; g < 4; ++g, out += 8) {
      write_signed(scale, kIq2XxsGrid[(indices >> (8 * g)) & 255], iq_signs((packed >> (7 * g)) & 127), 8, out);
    }
  }
}

void decode_block(const BlockIQ2_XS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int g = 0; g < 32; ++g, out += 8) {
    const uint32_t q = block.qs[g];
    const int code = (block.scales[g / 4] >> (4 * (g / 2 % 2))) & 15;  // one per 16 elements
    const float scale = d * (0.5f + static_cast<float>(code)) * 0.25f;
    write_signed(scale, kIq2XsGrid[q & 511], iq_signs(q >> 9), 8, out);
  }
}

void decode_block(const BlockIQ2_S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int g = 0; g < 32; ++g, out += 8) {
    const int code = (block.scales[g / 4] >> (4 * (g / 2 % 2))) & 15;
    const float scale = d * (0.5f + static_cast<float>(code)) * 0.25f;
    const int index = block.qs[g] | (((block.qh[g / 4] >> (2 * (g % 4))) & 3) << 8);
    write_signed(scale, kIq2SGrid[index], block.signs[g], 8, out);
  }
}

void decode_block(const BlockIQ3_XXS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t packed = block.signs_scales[sub];
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
    for (int g = 0; g < 8; ++g, out += 4) {
      const uint32_t signs = iq_signs((packed >> (7 * (g / 2))) & 127);
      write_signed(scale, kIq3XxsGrid[block.qs[8 * sub + g]], signs >> (4 * (g % 2)), 4, out);
    }
  }
}

void decode_block(const BlockIQ3_S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int g = 0; g < 64; ++g, out += 4) {
    const int code = (block.scales[g / 16] >> (4 * (g / 8 % 2))) & 15;  // one per 32 elements
    const float scale = d * static_cast<float>(1 + 2 * code);
    const int index = block.qs[g] | (((block.qh[g / 8] >> (g % 8)) & 1) << 8);
    const uint32_t signs = static_cast<uint32_t>(block.signs[g / 2]) >> (4 * (g % 2));
    write_signed(scale, kIq3SGrid[index], signs, 4, out);
  }
}

void decode_block(const BlockIQ1_S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int sub = 0; sub < 8; ++sub) {
    const int qh = block.qh[sub];
    const float scale = d * static_cast<float>(2 * ((qh >> 12) & 7) + 1);
    const float delta = qh & 0x8000 ? -0.125f : 0.125f;
    for (int g = 0; g < 4; ++g, out += 8) {
      const int index = block.qs[4 * sub + g] | (((qh >> (3 * g)) & 7) << 8);
      write_ternary(scale, kIq1SGrid[index], delta, out);
    }
  }
}

void decode_block(const BlockIQ1_M& block, float* out) {
  // The float16 scale is spread over the top nibbles of the four scale words, lowest nibble first.
  uint32_t d_bits = 0;
  for (int i = 0; i < 4; ++i) d_bits |= static_cast<uint32_t>(block.scales[i] >> 12) << (4 * i);
  const float d = half_to_float(static_cast<uint16_t>(d_bits));
  for (int g = 0; g < 32; ++g, out += 8) {
    const int code = (block.scales[g / 8] >> (3 * (g / 2 % 4))) & 7;  // one per 16 elements
    const float scale = d * static_cast<float>(2 * code + 1);
    const int high = (block.qh[g / 2] >> (4 * (g % 2))) & 15;
    const int index = block.qs[g] | ((high & 7) << 8);
    write_ternary(scale, kIq1SGrid[index], high & 8 ? -0.125f : 0.125f, out);
  }
}

void decode_block(const BlockIQ4_NL& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(kIq4Values[block.qs[j] & 15]);
    out[j + 16] = d * static_cast<float>(kIq4Values[block.qs[j] >> 4]);
  }
}

void decode_block(const BlockIQ4_XS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int sub = 0; sub < 8; ++sub, out += 32) {
    const int low = (block.scales_l[sub / 2] >> (4 * (sub % 2))) & 15;
    const int high = (block.scales_h >> (2 * sub)) & 3;
    const float scale = d * static_cast<float>((low | (high << 4)) - 32);
    for (int j = 0; j < 16; ++j) {
      const uint8_t q = block.qs[16 * sub + j];
      out[j] = scale * static_cast<float>(kIq4Values[q & 15]);
      out[j + 16] = scale * static_cast<float>(kIq4Values[q >> 4]);
    }
  }
}

}  // namespace headrace
