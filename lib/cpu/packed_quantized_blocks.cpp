// Unpacking of formats that keep their file blocks: one row's block to signed codes and scales. Every format is a
// scale per 16 or 32 values times small whole numbers: IQ1's eighths are multiplied out into the codes.
#include <cstring>

#include "cpu/packed_quantized_layout.h"
#include "tensor/block_formats.h"
#include "tensor/half.h"
#include "tensor/iq_grids.h"

namespace headrace {
namespace {

template <class Block>
const Block& as(const uint8_t* block) {
  return *reinterpret_cast<const Block*>(block);  // packed, alignment 1
}

// Where four codes from element e (a multiple of 4) on go.
uint8_t* place(uint8_t* codes, int e) { return codes + e / kQuantBlock * kBlockCodes + e % kQuantBlock / 4 * 64; }

void put4(uint8_t* codes, int e, uint32_t four) { std::memcpy(place(codes, e), &four, sizeof four); }
void put8(uint8_t* codes, int e, uint64_t eight) {
  put4(codes, e, static_cast<uint32_t>(eight));
  put4(codes, e + 4, static_cast<uint32_t>(eight >> 32));
}
// Any run of signed codes, a multiple of 4 long.
void put_run(uint8_t* codes, int e, const int8_t* run, int count) {
  for (int i = 0; i < count; i += 4) std::memcpy(place(codes, e + i), run + i, 4);
}

constexpr uint64_t kBytes = 0x0101010101010101;

// 0xff in the bytes whose sign bit is set.
uint64_t sign_mask(uint32_t signs) {
  const uint64_t spread = (signs * kBytes) & 0x8040201008040201;
  // Each byte has at most one bit: adding 0x7f carries it to the top.
  const uint64_t top = ((spread & 0x7f7f7f7f7f7f7f7f) + 0x7f * kBytes) | spread;
  return ((top >> 7) & kBytes) * 255;
}
// Bytes of `grid` (each 0..127) negated under the mask: ~x + 1 without carries between bytes.
uint64_t apply_signs(uint64_t grid, uint64_t mask) {
  const uint64_t flipped = grid ^ mask;
  const uint64_t low = 0x7f * kBytes;
  return ((flipped & low) + (mask & kBytes)) ^ (flipped & ~low);
}
uint64_t signed_grid(uint64_t grid, uint32_t signs) {
  // A zero byte cannot occur under a sign, so the addition of one never carries out of a byte's low seven bits.
  return apply_signs(grid, sign_mask(signs));
}

// 8 * t + delta for each ternary byte t, delta 1 or -1.
uint64_t ternary_codes(uint64_t grid, int delta) {
  int8_t values[8];
  std::memcpy(values, &grid, sizeof values);
  for (int8_t& value : values) value = static_cast<int8_t>(8 * value + delta);
  std::memcpy(&grid, values, sizeof values);
  return grid;
}

void scale_all(float* scales, int blocks, float value) {
  for (int b = 0; b < blocks; ++b) scales[b * kStripRows] = value;
}

void unpack_q1_0(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockQ1_0& b = as<BlockQ1_0>(block);
  scale_all(scales, 4, half_to_float(b.d));
  for (int j = 0; j < 16; ++j) put8(codes, 8 * j, (~sign_mask(b.qs[j])) | kBytes);  // 1 where set, else -1
}

void unpack_q2_0(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockQ2_0& b = as<BlockQ2_0>(block);
  scale_all(scales, 2, half_to_float(b.d));
  for (int j = 0; j < 16; ++j) {
    int8_t four[4];
    for (int i = 0; i < 4; ++i) four[i] = static_cast<int8_t>(((b.qs[j] >> (2 * i)) & 3) - 1);
    put_run(codes, 4 * j, four, 4);
  }
}

void unpack_q8_1(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockQ8_1& b = as<BlockQ8_1>(block);
  scales[0] = half_to_float(b.d);
  put_run(codes, 0, b.qs, 32);
}

void unpack_q8_k(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockQ8_K& b = as<BlockQ8_K>(block);
  scale_all(scales, 8, b.d);
  put_run(codes, 0, b.qs, 256);
}

void unpack_iq1_s(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ1_S& b = as<BlockIQ1_S>(block);
  const float eighth = half_to_float(b.d) * 0.125f;
  for (int sub = 0; sub < 8; ++sub) {
    const int qh = b.qh[sub];
    scales[sub * kStripRows] = eighth * static_cast<float>(2 * ((qh >> 12) & 7) + 1);
    for (int g = 0; g < 4; ++g) {
      const int index = b.qs[4 * sub + g] | (((qh >> (3 * g)) & 7) << 8);
      put8(codes, 32 * sub + 8 * g, ternary_codes(kIq1SGrid[index], qh & 0x8000 ? -1 : 1));
    }
  }
}

void unpack_iq1_m(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ1_M& b = as<BlockIQ1_M>(block);
  uint32_t d_bits = 0;
  for (int i = 0; i < 4; ++i) d_bits |= static_cast<uint32_t>(b.scales[i] >> 12) << (4 * i);
  const float eighth = half_to_float(static_cast<uint16_t>(d_bits)) * 0.125f;
  for (int half = 0; half < 16; ++half) {
    const int code = (b.scales[half / 4] >> (3 * (half % 4))) & 7;
    scales[half * kStripRows] = eighth * static_cast<float>(2 * code + 1);
  }
  for (int g = 0; g < 32; ++g) {
    const int high = (b.qh[g / 2] >> (4 * (g % 2))) & 15;
    put8(codes, 8 * g, ternary_codes(kIq1SGrid[b.qs[g] | ((high & 7) << 8)], high & 8 ? -1 : 1));
  }
}

void unpack_iq2_xxs(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ2_XXS& b = as<BlockIQ2_XXS>(block);
  const float d = half_to_float(b.d);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t indices = b.qs[2 * sub], packed = b.qs[2 * sub + 1];
    scales[sub * kStripRows] = d * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
    for (int g = 0; g < 4; ++g) {
      put8(codes, 32 * sub + 8 * g,
           signed_grid(kIq2XxsGrid[(indices >> (8 * g)) & 255], iq_signs((packed >> (7 * g)) & 127)));
    }
  }
}

// Scales of IQ2_XS and IQ2_S: four bits per 16 elements.
void iq2_scales(float d, const uint8_t* packed, float* scales) {
  for (int half = 0; half < 16; ++half) {
    const int code = (packed[half / 2] >> (4 * (half % 2))) & 15;
    scales[half * kStripRows] = d * (0.5f + static_cast<float>(code)) * 0.25f;
  }
}

void unpack_iq2_xs(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ2_XS& b = as<BlockIQ2_XS>(block);
  iq2_scales(half_to_float(b.d), b.scales, scales);
  for (int g = 0; g < 32; ++g) {
    const uint32_t q = b.qs[g];
    put8(codes, 8 * g, signed_grid(kIq2XsGrid[q & 511], iq_signs(q >> 9)));
  }
}

void unpack_iq2_s(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ2_S& b = as<BlockIQ2_S>(block);
  iq2_scales(half_to_float(b.d), b.scales, scales);
  for (int g = 0; g < 32; ++g) {
    const int index = b.qs[g] | (((b.qh[g / 4] >> (2 * (g % 4))) & 3) << 8);
    put8(codes, 8 * g, signed_grid(kIq2SGrid[index], b.signs[g]));
  }
}

uint64_t join(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }

void unpack_iq3_xxs(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ3_XXS& b = as<BlockIQ3_XXS>(block);
  const float d = half_to_float(b.d);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t packed = b.signs_scales[sub];
    scales[sub * kStripRows] = d * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
    for (int g = 0; g < 4; ++g) {
      const uint8_t* qs = b.qs + 8 * sub + 2 * g;
      put8(codes, 32 * sub + 8 * g,
           signed_grid(join(kIq3XxsGrid[qs[0]], kIq3XxsGrid[qs[1]]), iq_signs((packed >> (7 * g)) & 127)));
    }
  }
}

void unpack_iq3_s(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockIQ3_S& b = as<BlockIQ3_S>(block);
  const float d = half_to_float(b.d);
  for (int sub = 0; sub < 8; ++sub) {
    const int code = (b.scales[sub / 2] >> (4 * (sub % 2))) & 15;
    scales[sub * kStripRows] = d * static_cast<float>(1 + 2 * code);
    for (int g = 0; g < 4; ++g) {
      const uint8_t* qs = b.qs + 8 * sub + 2 * g;
      const int high = b.qh[sub] >> (2 * g);
      put8(codes, 32 * sub + 8 * g,
           signed_grid(join(kIq3SGrid[qs[0] | (high & 1) << 8], kIq3SGrid[qs[1] | (high & 2) << 7]),
                       b.signs[4 * sub + g]));
    }
  }
}

// Digit n of a byte of base-3 fractions, less one.
int8_t ternary_digit(uint8_t byte, int n) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const uint8_t rest = static_cast<uint8_t>(byte * kPowers[n]);
  return static_cast<int8_t>(((rest * 3) >> 8) - 1);
}

void unpack_tq1_0(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockTQ1_0& b = as<BlockTQ1_0>(block);
  scale_all(scales, 8, half_to_float(b.d));
  int8_t values[256];
  int8_t* out = values;
  for (int n = 0; n < 5; ++n) {
    for (int j = 0; j < 32; ++j) *out++ = ternary_digit(b.qs[j], n);
  }
  for (int n = 0; n < 5; ++n) {
    for (int j = 32; j < 48; ++j) *out++ = ternary_digit(b.qs[j], n);
  }
  for (int n = 0; n < 4; ++n) {
    for (int j = 0; j < 4; ++j) *out++ = ternary_digit(b.qh[j], n);
  }
  put_run(codes, 0, values, 256);
}

void unpack_tq2_0(const uint8_t* block, uint8_t* codes, float* scales) {
  const BlockTQ2_0& b = as<BlockTQ2_0>(block);
  scale_all(scales, 8, half_to_float(b.d));
  int8_t values[256];
  for (int e = 0; e < 256; ++e) {
    values[e] = static_cast<int8_t>(((b.qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2)) & 3) - 1);
  }
  put_run(codes, 0, values, 256);
}

}  // namespace

UnpackFileBlock file_block_unpacker(DType dtype) {
  switch (dtype) {
    case DType::kQ1_0: return unpack_q1_0;
    case DType::kQ2_0: return unpack_q2_0;
    case DType::kQ8_1: return unpack_q8_1;
    case DType::kQ8_K: return unpack_q8_k;
    case DType::kIQ1_S: return unpack_iq1_s;
    case DType::kIQ1_M: return unpack_iq1_m;
    case DType::kIQ2_XXS: return unpack_iq2_xxs;
    case DType::kIQ2_XS: return unpack_iq2_xs;
    case DType::kIQ2_S: return unpack_iq2_s;
    case DType::kIQ3_XXS: return unpack_iq3_xxs;
    case DType::kIQ3_S: return unpack_iq3_s;
    case DType::kTQ1_0: return unpack_tq1_0;
    case DType::kTQ2_0: return unpack_tq2_0;
    default: return nullptr;
  }
}

}  // namespace headrace
