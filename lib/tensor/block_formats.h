// Byte layouts of the block formats, little-endian, alignment 1: a block may be read in place from any
// address. Tables and decoding rules: docs/formats.md. float16 fields are raw bits (half_to_float).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace headrace {

// clang-format off
#pragma pack(push, 1)

struct BlockQ1_0 { uint16_t d; uint8_t qs[16]; };                 // 128 elements
struct BlockQ2_0 { uint16_t d; uint8_t qs[16]; };                 // 64 elements
struct BlockQ4_0 { uint16_t d; uint8_t qs[16]; };                 // 32 elements
struct BlockQ4_1 { uint16_t d, m; uint8_t qs[16]; };
struct BlockQ5_0 { uint16_t d; uint32_t qh; uint8_t qs[16]; };    // bit e of qh is the fifth bit of element e
struct BlockQ5_1 { uint16_t d, m; uint32_t qh; uint8_t qs[16]; };
struct BlockQ8_0 { uint16_t d; int8_t qs[32]; };
struct BlockQ8_1 { uint16_t d, s; int8_t qs[32]; };               // s = d * sum of qs

// The K formats: 256 elements in sub-blocks of 16 or 32 with scales of their own.
struct BlockQ2_K { uint8_t scales[16]; uint8_t qs[64]; uint16_t d, dmin; };
struct BlockQ3_K { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint16_t d; };
struct BlockQ4_K { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
struct BlockQ5_K { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
struct BlockQ6_K { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; };
struct BlockQ8_K { float d; int8_t qs[256]; int16_t sums[16]; };  // sums of 16 elements each

// The IQ formats: indices into fixed grids (iq_grids.h) and packed signs.
struct BlockIQ1_S { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; };
struct BlockIQ1_M { uint8_t qs[32]; uint8_t qh[16]; uint16_t scales[4]; };  // d in the top nibbles of scales
struct BlockIQ2_XXS { uint16_t d; uint32_t qs[16]; };  // per 32 elements: four indices; signs and scale
struct BlockIQ2_XS { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; };
struct BlockIQ2_S { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; };
struct BlockIQ3_XXS { uint16_t d; uint8_t qs[64]; uint32_t signs_scales[8]; };
struct BlockIQ3_S { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; };
struct BlockIQ4_NL { uint16_t d; uint8_t qs[16]; };               // 32 elements
struct BlockIQ4_XS { uint16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; };

// Ternary: base-3 digits (five in a byte) or two bits each.
struct BlockTQ1_0 { uint8_t qs[48]; uint8_t qh[4]; uint16_t d; };
struct BlockTQ2_0 { uint8_t qs[64]; uint16_t d; };

// FP4 (E2M1) with 8-bit floating scales.
struct BlockMXFP4 { uint8_t e; uint8_t qs[16]; };                 // 32 elements, E8M0 scale
struct BlockNVFP4 { uint8_t d[4]; uint8_t qs[32]; };              // 64 elements, unsigned E4M3 scale per 16

// Groups of a quantized checkpoint under a float32 scale, which holds float16, bfloat16 and float32 ones exactly.
template <int kGroup> struct BlockInt4 { float d; uint8_t zero; uint8_t qs[kGroup / 2]; };  // d * (q - zero); as Q4_0
template <int kGroup> struct BlockInt8 { float d; int16_t zero; int8_t qs[kGroup]; };       // d * (q - zero)
template <int kGroup> struct BlockFp8 { float d; uint8_t qs[kGroup]; };                     // E4M3
struct BlockNf4 { float d; uint8_t qs[32]; };                     // 64 elements: byte j holds j (low) and j + 32 (high)
// NVFP4 whose scales have a factor of their own: `scale`, or where that is negative the reciprocal of minus it.
struct BlockScaledNvfp4 { float scale; uint8_t d[4]; uint8_t qs[32]; };

#pragma pack(pop)
// clang-format on

static_assert(sizeof(BlockQ1_0) == 18 && sizeof(BlockQ2_0) == 18);
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ8_1) == 36);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockQ8_K) == 292);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);
static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66);
static_assert(sizeof(BlockMXFP4) == 17 && sizeof(BlockNVFP4) == 36);
static_assert(sizeof(BlockInt4<32>) == 21 && sizeof(BlockInt4<128>) == 69);
static_assert(sizeof(BlockInt8<32>) == 38 && sizeof(BlockInt8<128>) == 134);
static_assert(sizeof(BlockFp8<32>) == 36 && sizeof(BlockFp8<128>) == 132);
static_assert(sizeof(BlockNf4) == 36 && sizeof(BlockScaledNvfp4) == 40);

// Scale and minimum of sub-block j (0..7) of Q4_K and Q5_K, six bits each, from the 12 packed bytes.
struct ScaleMin {
  uint8_t scale, min;
};
inline ScaleMin k_scale_min(const uint8_t* packed, int j) {
  if (j < 4) return {static_cast<uint8_t>(packed[j] & 63), static_cast<uint8_t>(packed[j + 4] & 63)};
  return {static_cast<uint8_t>((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4)),
          static_cast<uint8_t>((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))};
}

// Scale of sub-block j (0..15) of Q3_K, -32..31, from the 12 packed bytes.
inline int q3_k_scale(const uint8_t* packed, int j) {
  const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  const int high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
  return (low | (high << 4)) - 32;
}

}  // namespace headrace
