// quantized_vec.h for x86-64.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "cpu/kernels/isa.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

#if HEADRACE_VECTOR_BITS == 512

using IntVec = __m512i;
using FloatVec = __m512;
constexpr int kLanes = 16;
HEADRACE_INLINE IntVec int_zero() { return _mm512_setzero_si512(); }
HEADRACE_INLINE IntVec int_set1(int32_t x) { return _mm512_set1_epi32(x); }
HEADRACE_INLINE IntVec int_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
HEADRACE_INLINE void int_store(uint8_t* p, IntVec a) { _mm512_storeu_si512(p, a); }
HEADRACE_INLINE IntVec int_shift_left(IntVec a, int count) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(count)); }
HEADRACE_INLINE IntVec dot(IntVec sum, IntVec u8, IntVec s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
HEADRACE_INLINE IntVec bits_and(IntVec a, IntVec b) { return _mm512_and_si512(a, b); }
HEADRACE_INLINE IntVec bits_or(IntVec a, IntVec b) { return _mm512_or_si512(a, b); }
HEADRACE_INLINE IntVec bits_xor(IntVec a, IntVec b) { return _mm512_xor_si512(a, b); }
HEADRACE_INLINE IntVec bytes_set1(int x) { return _mm512_set1_epi8((char)x); }
HEADRACE_INLINE IntVec look_up(const uint8_t* table, IntVec index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), index);
}
HEADRACE_INLINE FloatVec to_float(IntVec a) { return _mm512_cvtepi32_ps(a); }
HEADRACE_INLINE FloatVec float_set1(float x) { return _mm512_set1_ps(x); }
HEADRACE_INLINE FloatVec float_load(const float* p) { return _mm512_loadu_ps(p); }
HEADRACE_INLINE void float_store(float* p, FloatVec a) { _mm512_storeu_ps(p, a); }
HEADRACE_INLINE FloatVec float_add(FloatVec a, FloatVec b) { return _mm512_add_ps(a, b); }
HEADRACE_INLINE FloatVec float_mul(FloatVec a, FloatVec b) { return _mm512_mul_ps(a, b); }
HEADRACE_INLINE FloatVec float_fma(FloatVec a, FloatVec b, FloatVec c) { return _mm512_fmadd_ps(a, b, c); }

#elif HEADRACE_VECTOR_BITS == 256

using IntVec = __m256i;
using FloatVec = __m256;
constexpr int kLanes = 8;
HEADRACE_INLINE IntVec int_zero() { return _mm256_setzero_si256(); }
HEADRACE_INLINE IntVec int_set1(int32_t x) { return _mm256_set1_epi32(x); }
HEADRACE_INLINE IntVec int_load(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
HEADRACE_INLINE void int_store(uint8_t* p, IntVec a) { _mm256_storeu_si256((__m256i*)p, a); }
HEADRACE_INLINE IntVec int_shift_left(IntVec a, int count) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(count)); }
#if HEADRACE_EXACT_DOT
HEADRACE_INLINE IntVec dot(IntVec sum, IntVec u8, IntVec s8) { return _mm256_dpbusd_avx_epi32(sum, u8, s8); }
#else
HEADRACE_INLINE IntVec int_add(IntVec a, IntVec b) { return _mm256_add_epi32(a, b); }
HEADRACE_INLINE IntVec short_add(IntVec a, IntVec b) { return _mm256_add_epi16(a, b); }
HEADRACE_INLINE IntVec multiply_pairs(IntVec u8, IntVec s8) { return _mm256_maddubs_epi16(u8, s8); }
HEADRACE_INLINE IntVec widen_pairs(IntVec a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
HEADRACE_INLINE IntVec abs_bytes(IntVec a) { return _mm256_abs_epi8(a); }
HEADRACE_INLINE IntVec sign_bytes(IntVec a, IntVec sign) { return _mm256_sign_epi8(a, sign); }
#endif
HEADRACE_INLINE IntVec bits_and(IntVec a, IntVec b) { return _mm256_and_si256(a, b); }
HEADRACE_INLINE IntVec bits_or(IntVec a, IntVec b) { return _mm256_or_si256(a, b); }
HEADRACE_INLINE IntVec bits_xor(IntVec a, IntVec b) { return _mm256_xor_si256(a, b); }
HEADRACE_INLINE IntVec bytes_set1(int x) { return _mm256_set1_epi8((char)x); }
HEADRACE_INLINE IntVec look_up(const uint8_t* table, IntVec index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), index);
}
HEADRACE_INLINE FloatVec to_float(IntVec a) { return _mm256_cvtepi32_ps(a); }
HEADRACE_INLINE FloatVec float_set1(float x) { return _mm256_set1_ps(x); }
HEADRACE_INLINE FloatVec float_load(const float* p) { return _mm256_loadu_ps(p); }
HEADRACE_INLINE void float_store(float* p, FloatVec a) { _mm256_storeu_ps(p, a); }
HEADRACE_INLINE FloatVec float_add(FloatVec a, FloatVec b) { return _mm256_add_ps(a, b); }
HEADRACE_INLINE FloatVec float_mul(FloatVec a, FloatVec b) { return _mm256_mul_ps(a, b); }
HEADRACE_INLINE FloatVec float_fma(FloatVec a, FloatVec b, FloatVec c) { return _mm256_fmadd_ps(a, b, c); }

#else

using IntVec = __m128i;
using FloatVec = __m128;
constexpr int kLanes = 4;
HEADRACE_INLINE IntVec int_zero() { return _mm_setzero_si128(); }
HEADRACE_INLINE IntVec int_set1(int32_t x) { return _mm_set1_epi32(x); }
HEADRACE_INLINE IntVec int_load(const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); }
HEADRACE_INLINE void int_store(uint8_t* p, IntVec a) { _mm_storeu_si128((__m128i*)p, a); }
HEADRACE_INLINE IntVec int_shift_left(IntVec a, int count) { return _mm_sll_epi32(a, _mm_cvtsi32_si128(count)); }
HEADRACE_INLINE IntVec int_add(IntVec a, IntVec b) { return _mm_add_epi32(a, b); }
HEADRACE_INLINE IntVec short_add(IntVec a, IntVec b) { return _mm_add_epi16(a, b); }
HEADRACE_INLINE IntVec multiply_pairs(IntVec u8, IntVec s8) { return _mm_maddubs_epi16(u8, s8); }
HEADRACE_INLINE IntVec widen_pairs(IntVec a) { return _mm_madd_epi16(a, _mm_set1_epi16(1)); }
HEADRACE_INLINE IntVec abs_bytes(IntVec a) { return _mm_abs_epi8(a); }
HEADRACE_INLINE IntVec sign_bytes(IntVec a, IntVec sign) { return _mm_sign_epi8(a, sign); }
HEADRACE_INLINE IntVec bits_and(IntVec a, IntVec b) { return _mm_and_si128(a, b); }
HEADRACE_INLINE IntVec bits_or(IntVec a, IntVec b) { return _mm_or_si128(a, b); }
HEADRACE_INLINE IntVec bits_xor(IntVec a, IntVec b) { return _mm_xor_si128(a, b); }
HEADRACE_INLINE IntVec bytes_set1(int x) { return _mm_set1_epi8((char)x); }
HEADRACE_INLINE IntVec look_up(const uint8_t* table, IntVec index) {
  return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)table), index);
}
HEADRACE_INLINE FloatVec to_float(IntVec a) { return _mm_cvtepi32_ps(a); }
HEADRACE_INLINE FloatVec float_set1(float x) { return _mm_set1_ps(x); }
HEADRACE_INLINE FloatVec float_load(const float* p) { return _mm_loadu_ps(p); }
HEADRACE_INLINE void float_store(float* p, FloatVec a) { _mm_storeu_ps(p, a); }
HEADRACE_INLINE FloatVec float_add(FloatVec a, FloatVec b) { return _mm_add_ps(a, b); }
HEADRACE_INLINE FloatVec float_mul(FloatVec a, FloatVec b) { return _mm_mul_ps(a, b); }

// Two lanes of a * b + c rounded once to float32. The product is exact in float64; where the float64 sum was inexact
// and lies halfway between two floats, its last bit is first moved towards the exact sum ("round to odd").
HEADRACE_INLINE __m128 fma_two(__m128 a, __m128 b, __m128 c) {
  const __m128d product = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), addend = _mm_cvtps_pd(c);
  __m128d sum = _mm_add_pd(product, addend);
  const __m128i below = _mm_and_si128(_mm_castpd_si128(sum), _mm_set1_epi64x(0x1fffffff));
  const __m128i halfway = _mm_cmpeq_epi64(below, _mm_set1_epi64x(0x10000000));
  if (__builtin_expect(!_mm_testz_si128(halfway, halfway), 0)) {
    const __m128d part = _mm_sub_pd(sum, product);
    const __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, part)), _mm_sub_pd(addend, part));
    const __m128d zero_pd = _mm_setzero_pd();
    const __m128i inexact = _mm_and_si128(halfway, _mm_castpd_si128(_mm_cmpneq_pd(error, zero_pd)));
    // Away from zero (+1 in the bit pattern) where sum and error have the same sign, else towards it (-1).
    const __m128i signs = _mm_xor_si128(_mm_castpd_si128(sum), _mm_castpd_si128(error));
    const __m128i negative = _mm_cmpgt_epi64(_mm_setzero_si128(), signs);
    const __m128i step = _mm_or_si128(negative, _mm_set1_epi64x(1));
    sum = _mm_castsi128_pd(_mm_add_epi64(_mm_castpd_si128(sum), _mm_and_si128(step, inexact)));
  }
  return _mm_cvtpd_ps(sum);
}
HEADRACE_INLINE FloatVec float_fma(FloatVec a, FloatVec b, FloatVec c) {
  const __m128 low = fma_two(a, b, c);
  const __m128 high = fma_two(_mm_movehl_ps(a, a), _mm_movehl_ps(b, b), _mm_movehl_ps(c, c));
  return _mm_movelh_ps(low, high);
}

#endif

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
