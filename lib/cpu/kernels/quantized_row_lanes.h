// Quantizing one block of several rows at once, a row in each lane: AVX-512's way of writing the tiles of
// QuantizedPlane without single stores. The arithmetic is that of one row (quantized_activations.cpp).
#pragma once

#include <immintrin.h>

#include "cpu/kernels/quantized_kernels.h"
#include "cpu/kernels/vec.h"

#if HEADRACE_VECTOR_BITS == 512

namespace headrace::HEADRACE_ISA_NAMESPACE {

constexpr int kRowLanes = 8;
static_assert(kRowLanes <= kQuantizeScratch);

// v[i] lane j = old v[j] lane i.
HEADRACE_INLINE void transpose(__m256i (&v)[kRowLanes]) {
  __m256i pairs[kRowLanes], fours[kRowLanes];
  HEADRACE_UNROLL
  for (int i = 0; i < kRowLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  HEADRACE_UNROLL
  for (int i = 0; i < kRowLanes; i += 4) {
    fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  HEADRACE_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

// Lane r = the largest lane of v[r].
HEADRACE_INLINE __m256i largest_lanes(const __m256i (&v)[kRowLanes]) {
  __m256i pairs[4], fours[2];
  HEADRACE_UNROLL
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        _mm256_max_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  HEADRACE_UNROLL
  for (int i = 0; i < 2; ++i) {
    fours[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                _mm256_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
  return _mm256_max_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                          _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// Quantizes a block of each of num_rows rows, row r's at x + r * x_stride, and writes the tile's block. amax
// [kRowLanes] gets the bits of the rows' largest magnitudes.
HEADRACE_INLINE void quantize_row_lanes(const float* x, int64_t x_stride, int num_rows, uint8_t* block, int32_t* amax) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const float* rows[kRowLanes];
  __m256i v[kRowLanes];
  HEADRACE_UNROLL
  for (int r = 0; r < kRowLanes; ++r) {
    rows[r] = x + (r < num_rows ? r : 0) * x_stride;  // lanes without a row repeat the first and are not stored
    const __m512i most = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(rows[r]), magnitude),
                                          _mm512_and_si512(_mm512_loadu_si512(rows[r] + 16), magnitude));
    v[r] = _mm256_max_epi32(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  }
  const __m256i bits = largest_lanes(v);
  _mm256_storeu_si256((__m256i*)amax, bits);

  const __m256 largest = _mm256_castsi256_ps(bits), full = _mm256_set1_ps(127.0f);
  const __m256 inverse = _mm256_div_ps(full, largest);
  const __mmask8 endless = _mm256_cmpgt_epi32_mask(bits, _mm256_set1_epi32(0x7f7fffff));
  const __mmask8 small = _mm256_cmp_ps_mask(inverse, _mm256_set1_ps(3.4e38f), _CMP_NLE_UQ);
  __m256 scale = _mm256_maskz_div_ps((__mmask8)~small, largest, full);
  scale = _mm256_mask_mov_ps(scale, endless, _mm256_set1_ps(__builtin_nanf("")));
  alignas(32) float inverses[kRowLanes];
  _mm256_store_ps(inverses, _mm256_maskz_mov_ps((__mmask8) ~(small | endless), inverse));

  HEADRACE_UNROLL
  for (int r = 0; r < kRowLanes; ++r) {
    // Zero times what is not finite is NaN, whose conversion keeps no low bits: the code 0.
    const __m512 factor = _mm512_set1_ps(inverses[r]);
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(rows[r]), factor));
    const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(rows[r] + 16), factor));
    v[r] = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
  }
  transpose(v);
  const __m256i ones = _mm256_set1_epi8(1), zero = _mm256_setzero_si256();
  __m256i low_sum = zero, high_sum = zero;
  HEADRACE_UNROLL
  for (int g = 0; g < 4; ++g) {
    low_sum = _mm256_dpbusd_epi32(low_sum, ones, v[g]);
    high_sum = _mm256_dpbusd_epi32(high_sum, ones, v[g + 4]);
  }
  const __m256i sum = _mm256_add_epi32(low_sum, high_sum);
  const __mmask8 stored = (__mmask8)((1 << num_rows) - 1);
  const auto put = [&](__m256i value) {
    _mm256_mask_storeu_epi32(block, stored, value);
    block += 4 * num_rows;
  };
  const auto scaled = [&](__m256i value) {
    return _mm256_castps_si256(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(value)));
  };
  HEADRACE_UNROLL
  for (int g = 0; g < 8; ++g) put(v[g]);
  // In the order of ActivationField.
  put(_mm256_castps_si256(scale));
  put(scaled(sum));
  put(scaled(low_sum));
  put(scaled(high_sum));
  put(_mm256_sub_epi32(zero, sum));
  put(_mm256_sub_epi32(zero, low_sum));
  put(_mm256_sub_epi32(zero, high_sum));
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE

#endif
