// Quantizing rows of activations to int8 codes, with second terms in the outlier blocks. Plain loops that the
// compiler vectorizes; every operation is exact or correctly rounded, so all instruction sets agree bit for bit.
#include <string.h>

#include "cpu/kernels/quantized_entry.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

// Bits of the largest magnitude of 32 values; NaN counts as larger than infinity. Bit patterns of non-negative floats
// order like the floats.
HEADRACE_INLINE int32_t magnitude_bits(const float* x) {
  int32_t bits[kQuantBlock];
  memcpy(bits, x, sizeof bits);
  int32_t most = 0;
  for (int i = 0; i < kQuantBlock; ++i) {
    const int32_t magnitude = bits[i] & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

// Codes, scale and sums of one block, at index `at` of the plane. rest, if wanted, is x - scale * code.
HEADRACE_INLINE void quantize_block(const float* x, int32_t bits, const QuantizedPlane& plane, int64_t at,
                                    float* rest) {
  int8_t* codes = plane.codes + at * kQuantBlock;
  float amax;
  memcpy(&amax, &bits, sizeof amax);
  float scale = amax / 127.0f;
  const float inverse = 127.0f / amax;
  // Values too small for a reciprocal are zeros; a block with a value that is not finite has the scale NaN, which
  // makes every output of its row NaN.
  const bool finite = bits < kInfinityBits;
  const bool usable = finite && inverse <= 3.4e38f;
  if (!usable) {
    scale = finite ? 0.0f : __builtin_nanf("");
    memset(codes, 0, kQuantBlock);
    if (rest) memset(rest, 0, kQuantBlock * sizeof *rest);
    plane.scales[at] = scale;
    plane.block_sums[at] = scale * 0.0f;
    plane.half_sums[2 * at] = plane.half_sums[2 * at + 1] = scale * 0.0f;
    plane.block_minus[at] = plane.half_minus[2 * at] = plane.half_minus[2 * at + 1] = 0;
    return;
  }
  int32_t wide[kQuantBlock];
  // Adding 1.5 * 2^23 rounds to the nearest whole number, ties to even, and leaves it in the low bits.
  float shifted[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) shifted[i] = x[i] * inverse + 0x1.8p23f;
  memcpy(wide, shifted, sizeof wide);
  for (int i = 0; i < kQuantBlock; ++i) wide[i] -= 0x4b400000;
  for (int i = 0; i < kQuantBlock; ++i) codes[i] = (int8_t)wide[i];
  int32_t low = 0, high = 0;
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    low += wide[i];
    high += wide[i + kQuantBlock / 2];
  }
  if (rest) {
    for (int i = 0; i < kQuantBlock; ++i) rest[i] = x[i] - scale * (float)wide[i];
  }
  plane.scales[at] = scale;
  plane.block_sums[at] = scale * (float)(low + high);
  plane.half_sums[2 * at] = scale * (float)low;
  plane.half_sums[2 * at + 1] = scale * (float)high;
  plane.block_minus[at] = -(low + high);
  plane.half_minus[2 * at] = -low;
  plane.half_minus[2 * at + 1] = -high;
}

int64_t count_above(const int32_t* values, int64_t count, int32_t bound) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] > bound;
  return found;
}

// The blocks with the `wanted` largest magnitudes, ascending; of equal ones the first.
void choose_outliers(const int32_t* amax, int64_t blocks, int64_t wanted, int32_t* index) {
  // The largest bound that at least `wanted` blocks reach, bit by bit.
  int32_t bound = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const int32_t raised = bound | (1 << bit);
    if (count_above(amax, blocks, raised - 1) >= wanted) bound = raised;
  }
  int64_t ties = wanted - count_above(amax, blocks, bound);
  int64_t found = 0;
  for (int64_t b = 0; b < blocks && found < wanted; ++b) {
    if (amax[b] > bound || (amax[b] == bound && ties-- > 0)) index[found++] = (int32_t)b;
  }
}

}  // namespace

void quantized_quantize_row(const float* x, int64_t row, const QuantizedPlane& first, const QuantizedPlane& second,
                            int32_t* second_index, int32_t* amax) {
  const int64_t blocks = first.blocks, wanted = second.blocks;
  int32_t* index = second_index + row * wanted;
  for (int64_t b = 0; b < blocks; ++b) amax[b] = magnitude_bits(x + b * kQuantBlock);
  if (wanted < blocks) {
    choose_outliers(amax, blocks, wanted, index);
  } else {
    for (int64_t b = 0; b < blocks; ++b) index[b] = (int32_t)b;
  }
  int64_t next = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t at = row * blocks + b;
    if (next < wanted && index[next] == b) {
      float rest[kQuantBlock];
      quantize_block(x + b * kQuantBlock, amax[b], first, at, rest);
      quantize_block(rest, magnitude_bits(rest), second, row * wanted + next, nullptr);
      ++next;
    } else {
      quantize_block(x + b * kQuantBlock, amax[b], first, at, nullptr);
    }
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
