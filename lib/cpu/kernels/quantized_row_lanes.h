// Quantizing eight blocks at once, one in each lane: AVX-512's way of writing the tiles of QuantizedPlane without single
// stores. The arithmetic is that of one row (quantized_activations.cpp).
#pragma once

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

// Eight blocks, wherever they lie: a lane of the vectors is a block.
struct BlockLanes {
  __m256i magnitudes;  // bits of the largest
  __m256 scales;
  __m256i codes[kRowLanes];  // of block r, eight groups of four
};

HEADRACE_INLINE BlockLanes quantize_lanes(const float* const (&x)[kRowLanes]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m256i v[kRowLanes];
  HEADRACE_UNROLL
  for (int r = 0; r < kRowLanes; ++r) {
    const __m512i most = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x[r]), magnitude),
                                          _mm512_and_si512(_mm512_loadu_si512(x[r] + 16), magnitude));
    v[r] = _mm256_max_epi32(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  }
  BlockLanes out;
  out.magnitudes = largest_lanes(v);
  const __m256 largest = _mm256_castsi256_ps(out.magnitudes), full = _mm256_set1_ps(127.0f);
  const __m256 inverse = _mm256_div_ps(full, largest);
  const __mmask8 endless = _mm256_cmpgt_epi32_mask(out.magnitudes, _mm256_set1_epi32(0x7f7fffff));
  const __mmask8 small = _mm256_cmp_ps_mask(inverse, _mm256_set1_ps(3.4e38f), _CMP_NLE_UQ);
  out.scales = _mm256_mask_mov_ps(_mm256_maskz_div_ps((__mmask8)~small, largest, full), endless,
                                  _mm256_set1_ps(__builtin_nanf("")));
  alignas(32) float inverses[kRowLanes];
  _mm256_store_ps(inverses, _mm256_maskz_mov_ps((__mmask8) ~(small | endless), inverse));
  HEADRACE_UNROLL
  for (int r = 0; r < kRowLanes; ++r) {
    // Zero times what is not finite is NaN, whose conversion keeps no low bits: the code 0.
    const __m512 factor = _mm512_set1_ps(inverses[r]);
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[r]), factor));
    const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[r] + 16), factor));
    out.codes[r] = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
  }
  return out;
}

// In the order of ActivationField, and zeros. groups[g]: group g of each lane's codes.
HEADRACE_INLINE void lane_fields(const __m256i (&groups)[kRowLanes], __m256 scales, __m256i (&fields)[kRowLanes]) {
  const __m256i ones = _mm256_set1_epi8(1), zero = _mm256_setzero_si256();
  __m256i low = zero, high = zero;
  HEADRACE_UNROLL
  for (int g = 0; g < 4; ++g) {
    low = _mm256_dpbusd_epi32(low, ones, groups[g]);
    high = _mm256_dpbusd_epi32(high, ones, groups[g + 4]);
  }
  const __m256i sum = _mm256_add_epi32(low, high);
  const auto scaled = [&](__m256i value) {
    return _mm256_castps_si256(_mm256_mul_ps(scales, _mm256_cvtepi32_ps(value)));
  };
  fields[kScale] = _mm256_castps_si256(scales);
  fields[kSum] = scaled(sum);
  fields[kLowSum] = scaled(low);
  fields[kHighSum] = scaled(high);
  fields[kMinusSum] = _mm256_sub_epi32(zero, sum);
  fields[kMinusLow] = _mm256_sub_epi32(zero, low);
  fields[kMinusHigh] = _mm256_sub_epi32(zero, high);
  fields[kActivationFields] = zero;
}

// Quantizes a block of each of num_rows rows, row r's at x + r * x_stride, and writes the tile's block. amax
// [kRowLanes] gets the bits of the rows' largest magnitudes.
HEADRACE_INLINE void quantize_row_lanes(const float* x, int64_t x_stride, int num_rows, uint8_t* block, int32_t* amax) {
  const float* rows[kRowLanes];
  HEADRACE_UNROLL
  for (int r = 0; r < kRowLanes; ++r) rows[r] = x + (r < num_rows ? r : 0) * x_stride;  // others are not stored
  BlockLanes lanes = quantize_lanes(rows);
  _mm256_storeu_si256((__m256i*)amax, lanes.magnitudes);
  transpose(lanes.codes);
  __m256i fields[kRowLanes];
  lane_fields(lanes.codes, lanes.scales, fields);
  const __mmask8 stored = (__mmask8)((1 << num_rows) - 1);
  const auto put = [&](__m256i value) {
    _mm256_mask_storeu_epi32(block, stored, value);
    block += 4 * num_rows;
  };
  HEADRACE_UNROLL
  for (int g = 0; g < 8; ++g) put(lanes.codes[g]);
  HEADRACE_UNROLL
  for (int field = 0; field < kActivationFields; ++field) put(fields[field]);
}

// Quantizes kRowLanes neighbouring blocks of one row, as a tile of that row alone, from `block` on. amax [kRowLanes] gets
// the bits of their largest magnitudes.
HEADRACE_INLINE void quantize_block_lanes(const float* x, uint8_t* block, int32_t* amax) {
  static_assert(kActivationFields == kRowLanes - 1);
  const float* blocks[kRowLanes];
  HEADRACE_UNROLL
  for (int b = 0; b < kRowLanes; ++b) blocks[b] = x + b * kQuantBlock;
  const BlockLanes lanes = quantize_lanes(blocks);
  _mm256_storeu_si256((__m256i*)amax, lanes.magnitudes);
  __m256i groups[kRowLanes], fields[kRowLanes];
  HEADRACE_UNROLL
  for (int b = 0; b < kRowLanes; ++b) groups[b] = lanes.codes[b];
  transpose(groups);
  lane_fields(groups, lanes.scales, fields);
  transpose(fields);
  HEADRACE_UNROLL
  for (int b = 0; b < kRowLanes; ++b, block += kActivationBytes) {
    _mm256_storeu_si256((__m256i*)block, lanes.codes[b]);
    _mm256_mask_storeu_epi32(block + kQuantBlock, (1 << kActivationFields) - 1, fields[b]);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE

#endif
