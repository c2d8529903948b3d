// vec.h for x86-64: one register of 512 bits, two of 256 or four of 128.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu/kernels/isa.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

#if HEADRACE_VECTOR_BITS == 512

struct V16 {
  __m512 v;
};
HEADRACE_INLINE V16 zero() { return {_mm512_setzero_ps()}; }
HEADRACE_INLINE V16 set1(float x) { return {_mm512_set1_ps(x)}; }
HEADRACE_INLINE V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HEADRACE_INLINE void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
HEADRACE_INLINE V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HEADRACE_INLINE V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
HEADRACE_INLINE V16 abs(V16 a) { return {_mm512_abs_ps(a.v)}; }
HEADRACE_INLINE V16 copy_sign(V16 magnitude, V16 sign) {
  return {_mm512_or_ps(magnitude.v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
HEADRACE_INLINE V16 round(V16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
HEADRACE_INLINE V16 select_less(V16 less, V16 bound, V16 a, V16 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(less.v, bound.v, _CMP_LT_OQ), b.v, a.v)};
}
HEADRACE_INLINE V16 scale_exponent(V16 a, V16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
HEADRACE_INLINE V16 keep_lanes(V16 a, int begin, int end, float other) {
  const uint32_t mask = ((1u << end) - 1u) & ~((1u << begin) - 1u);
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), _mm512_set1_ps(other), a.v)};
}
HEADRACE_INLINE float reduce_add(V16 a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
HEADRACE_INLINE float reduce_max(V16 a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}
HEADRACE_INLINE V16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HEADRACE_INLINE V16 load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
HEADRACE_INLINE V16 look_up(const float* table, const uint8_t* indexes) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(indexes)));
  return {_mm512_permutexvar_ps(wide, _mm512_loadu_ps(table))};
}
HEADRACE_INLINE V16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
HEADRACE_INLINE void store_f16(uint16_t* p, V16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HEADRACE_INLINE V16 max_bits(V16 a, V16 b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
HEADRACE_INLINE __m128i halve_max_bits(V16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
  return _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
HEADRACE_INLINE __m128i rounded_codes(V16 a) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)); }

#else

#if HEADRACE_VECTOR_BITS == 256
constexpr int kParts = 2;
constexpr int kWidth = 8;
using Part = __m256;
#define HEADRACE_PART(name) _mm256_##name##_ps
#else
constexpr int kParts = 4;
constexpr int kWidth = 4;
using Part = __m128;
#define HEADRACE_PART(name) _mm_##name##_ps
#endif

struct V16 {
  Part v[kParts];
};

HEADRACE_INLINE V16 zero() { HEADRACE_EACH(HEADRACE_PART(setzero)()); }
HEADRACE_INLINE V16 set1(float x) { HEADRACE_EACH(HEADRACE_PART(set1)(x)); }
HEADRACE_INLINE V16 load(const float* p) { HEADRACE_EACH(HEADRACE_PART(loadu)(p + i * kWidth)); }
HEADRACE_INLINE void store(float* p, V16 a) {
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) HEADRACE_PART(storeu)(p + i * kWidth, a.v[i]);
}
HEADRACE_INLINE V16 add(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(add)(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 sub(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(sub)(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 mul(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(mul)(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 div(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(div)(a.v[i], b.v[i])); }
#if HEADRACE_VECTOR_BITS == 256
HEADRACE_INLINE V16 fma(V16 a, V16 b, V16 c) { HEADRACE_EACH(_mm256_fmadd_ps(a.v[i], b.v[i], c.v[i])); }
#else
HEADRACE_INLINE V16 fma(V16 a, V16 b, V16 c) { HEADRACE_EACH(_mm_add_ps(_mm_mul_ps(a.v[i], b.v[i]), c.v[i])); }
#endif
HEADRACE_INLINE V16 max(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(max)(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 min(V16 a, V16 b) { HEADRACE_EACH(HEADRACE_PART(min)(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 abs(V16 a) {
  const Part sign = HEADRACE_PART(set1)(-0.0f);
  HEADRACE_EACH(HEADRACE_PART(andnot)(sign, a.v[i]));
}
HEADRACE_INLINE V16 copy_sign(V16 magnitude, V16 sign) {
  const Part mask = HEADRACE_PART(set1)(-0.0f);
  HEADRACE_EACH(HEADRACE_PART(or)(magnitude.v[i], HEADRACE_PART(and)(sign.v[i], mask)));
}
HEADRACE_INLINE V16 round(V16 a) {
  HEADRACE_EACH(HEADRACE_PART(round)(a.v[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#if HEADRACE_VECTOR_BITS == 256
HEADRACE_INLINE V16 select_less(V16 less, V16 bound, V16 a, V16 b) {
  HEADRACE_EACH(_mm256_blendv_ps(b.v[i], a.v[i], _mm256_cmp_ps(less.v[i], bound.v[i], _CMP_LT_OQ)));
}
HEADRACE_INLINE V16 scale_exponent(V16 a, V16 n) {
  HEADRACE_EACH(_mm256_mul_ps(a.v[i], _mm256_castsi256_ps(_mm256_slli_epi32(
                                          _mm256_add_epi32(_mm256_cvtps_epi32(n.v[i]), _mm256_set1_epi32(127)), 23))));
}
HEADRACE_INLINE V16 keep_lanes(V16 a, int begin, int end, float other) {
  const __m256i first = _mm256_set1_epi32(begin - 1), last = _mm256_set1_epi32(end);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  V16 out;
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const __m256i lane = _mm256_add_epi32(lanes, _mm256_set1_epi32(i * kWidth));
    const __m256i keep = _mm256_and_si256(_mm256_cmpgt_epi32(lane, first), _mm256_cmpgt_epi32(last, lane));
    out.v[i] = _mm256_blendv_ps(_mm256_set1_ps(other), a.v[i], _mm256_castsi256_ps(keep));
  }
  return out;
}
HEADRACE_INLINE __m128 halve_add(V16 a) {
  const __m256 sum = _mm256_add_ps(a.v[0], a.v[1]);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}
HEADRACE_INLINE __m128 halve_max(V16 a) {
  const __m256 top = _mm256_max_ps(a.v[0], a.v[1]);
  return _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
}
HEADRACE_INLINE V16 load_f16(const uint16_t* p) {
  HEADRACE_EACH(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * kWidth))));
}
HEADRACE_INLINE V16 load_bf16(const uint16_t* p) {
  HEADRACE_EACH(_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * kWidth))), 16)));
}
HEADRACE_INLINE V16 look_up(const float* table, const uint8_t* indexes) {
  const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
  V16 out;
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(indexes + i * kWidth)));
    const __m256 above = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 28));  // bit 3 becomes the sign
    out.v[i] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, wide), _mm256_permutevar8x32_ps(high, wide), above);
  }
  return out;
}
HEADRACE_INLINE V16 load_i8(const int8_t* p) {
  HEADRACE_EACH(
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kWidth)))));
}
HEADRACE_INLINE void store_f16(uint16_t* p, V16 a) {
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + i * kWidth),
                     _mm256_cvtps_ph(a.v[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}
HEADRACE_INLINE V16 max_bits(V16 a, V16 b) {
  HEADRACE_EACH(_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.v[i]), _mm256_castps_si256(b.v[i]))));
}
HEADRACE_INLINE __m128i halve_max_bits(V16 a) {
  const __m256i bits = _mm256_max_epi32(_mm256_castps_si256(a.v[0]), _mm256_castps_si256(a.v[1]));
  return _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}
HEADRACE_INLINE __m128i rounded_codes(V16 a) {
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1]));
  const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}
#else
HEADRACE_INLINE V16 select_less(V16 less, V16 bound, V16 a, V16 b) {
  HEADRACE_EACH(_mm_blendv_ps(b.v[i], a.v[i], _mm_cmplt_ps(less.v[i], bound.v[i])));
}
HEADRACE_INLINE V16 scale_exponent(V16 a, V16 n) {
  HEADRACE_EACH(_mm_mul_ps(
      a.v[i], _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(n.v[i]), _mm_set1_epi32(127)), 23))));
}
HEADRACE_INLINE V16 keep_lanes(V16 a, int begin, int end, float other) {
  const __m128i first = _mm_set1_epi32(begin - 1), last = _mm_set1_epi32(end);
  V16 out;
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const __m128i lane = _mm_add_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(i * kWidth));
    const __m128i keep = _mm_and_si128(_mm_cmpgt_epi32(lane, first), _mm_cmpgt_epi32(last, lane));
    out.v[i] = _mm_blendv_ps(_mm_set1_ps(other), a.v[i], _mm_castsi128_ps(keep));
  }
  return out;
}
HEADRACE_INLINE __m128 halve_add(V16 a) { return _mm_add_ps(_mm_add_ps(a.v[0], a.v[1]), _mm_add_ps(a.v[2], a.v[3])); }
HEADRACE_INLINE __m128 halve_max(V16 a) { return _mm_max_ps(_mm_max_ps(a.v[0], a.v[1]), _mm_max_ps(a.v[2], a.v[3])); }
// The exponent is rebased by a multiplication, which also normalises subnormals.
HEADRACE_INLINE __m128 widen_f16(const uint16_t* p) {
  const __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fff));
  const __m128 value = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(magnitude, 13)), _mm_set1_ps(0x1p112f));
  const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));  // infinity and NaN
  const __m128i sign = _mm_slli_epi32(_mm_xor_si128(bits, magnitude), 16);
  const __m128i extra = _mm_or_si128(sign, _mm_and_si128(special, _mm_set1_epi32(0x7f800000)));
  return _mm_or_ps(value, _mm_castsi128_ps(extra));
}
HEADRACE_INLINE V16 load_f16(const uint16_t* p) { HEADRACE_EACH(widen_f16(p + i * kWidth)); }
HEADRACE_INLINE V16 load_bf16(const uint16_t* p) {
  HEADRACE_EACH(_mm_castsi128_ps(
      _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kWidth))), 16)));
}
HEADRACE_INLINE __m128 widen_i8(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
}
HEADRACE_INLINE V16 look_up(const float* table, const uint8_t* indexes) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = table[indexes[i]];
  return load(lanes);
}
HEADRACE_INLINE V16 load_i8(const int8_t* p) { HEADRACE_EACH(widen_i8(p + i * kWidth)); }
HEADRACE_INLINE uint16_t narrow_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds past 65504
  if (magnitude < 0x38800000) {                                              // subnormal: round by adding 0.5
    float shifted;
    memcpy(&shifted, &magnitude, 4);
    shifted += 0.5f;
    uint32_t rounded;
    memcpy(&rounded, &shifted, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}
HEADRACE_INLINE void store_f16(uint16_t* p, V16 a) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; ++i) p[i] = narrow_f16(lanes[i]);
}
HEADRACE_INLINE V16 max_bits(V16 a, V16 b) {
  HEADRACE_EACH(_mm_castsi128_ps(_mm_max_epi32(_mm_castps_si128(a.v[i]), _mm_castps_si128(b.v[i]))));
}
HEADRACE_INLINE __m128i halve_max_bits(V16 a) {
  return _mm_max_epi32(_mm_max_epi32(_mm_castps_si128(a.v[0]), _mm_castps_si128(a.v[1])),
                       _mm_max_epi32(_mm_castps_si128(a.v[2]), _mm_castps_si128(a.v[3])));
}
HEADRACE_INLINE __m128i rounded_codes(V16 a) {
  return _mm_packs_epi16(_mm_packs_epi32(_mm_cvtps_epi32(a.v[0]), _mm_cvtps_epi32(a.v[1])),
                         _mm_packs_epi32(_mm_cvtps_epi32(a.v[2]), _mm_cvtps_epi32(a.v[3])));
}
#endif

HEADRACE_INLINE float reduce_add(V16 a) {
  __m128 quarter = halve_add(a);
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
HEADRACE_INLINE float reduce_max(V16 a) {
  __m128 quarter = halve_max(a);
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

#undef HEADRACE_PART

#endif  // HEADRACE_VECTOR_BITS

#if HEADRACE_VECTOR_BITS == 128
HEADRACE_INLINE float widen_half(uint16_t half) {
  uint16_t four[4] = {half, 0, 0, 0};
  return _mm_cvtss_f32(widen_f16(four));
}
HEADRACE_INLINE uint16_t narrow_half(float x) { return narrow_f16(x); }
#else
HEADRACE_INLINE float widen_half(uint16_t half) { return _cvtsh_ss(half); }
HEADRACE_INLINE uint16_t narrow_half(float x) {
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif
HEADRACE_INLINE int32_t nearest_int(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }
HEADRACE_INLINE float scalar_sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

HEADRACE_INLINE int32_t reduce_max_bits(V16 a) {
  __m128i most = halve_max_bits(a);
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  return _mm_cvtsi128_si32(most);
}

using Codes16 = __m128i;
HEADRACE_INLINE Codes16 zero_codes() { return _mm_setzero_si128(); }
HEADRACE_INLINE int32_t sum_codes(Codes16 codes) {
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}
HEADRACE_INLINE void store_codes(int8_t* p, Codes16 codes) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), codes); }
template <int kIndex>
HEADRACE_INLINE int32_t four_codes(Codes16 codes) {
  return _mm_extract_epi32(codes, kIndex);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
