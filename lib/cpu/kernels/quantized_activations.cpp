// Quantizing rows of activations to int8 codes, with second terms in the outlier blocks. Every operation is exact or
// correctly rounded, so all instruction sets agree bit for bit.
#include <string.h>

#include "cpu/kernels/quantized_entry.h"
#include "cpu/kernels/quantized_row_lanes.h"
#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

// Bits of the largest magnitude of 32 values; NaN counts as larger than infinity.
HEADRACE_INLINE int32_t magnitude_bits(const float* x) {
  return reduce_max_bits(max_bits(abs(load(x)), abs(load(x + 16))));
}

// Where one row's part of a block lies in a plane: tile_rows rows in the tile.
struct BlockPlace {
  uint8_t* block;
  int64_t tile_rows, row;
};

// The scale of a block and the reciprocal that codes are made with. Values too small for a reciprocal are zeros; a
// block with a value that is not finite has the scale NaN, which makes every output of its row NaN. Either has the
// reciprocal zero.
HEADRACE_INLINE void block_scales(const int32_t* bits, int64_t blocks, float* scales, float* inverses) {
  for (int64_t b = 0; b < blocks; ++b) {
    float amax;
    memcpy(&amax, bits + b, sizeof amax);
    const float inverse = 127.0f / amax;
    const bool small = !(inverse <= 3.4e38f);
    scales[b] = bits[b] >= kInfinityBits ? __builtin_nanf("") : small ? 0.0f : amax / 127.0f;
    inverses[b] = small || bits[b] >= kInfinityBits ? 0.0f : inverse;
  }
}

struct BlockCodes {
  Codes16 low, high;
};

HEADRACE_INLINE BlockCodes block_codes(const float* x, float inverse) {
  if (inverse == 0.0f) return {zero_codes(), zero_codes()};
  return {rounded_codes(mul(load(x), set1(inverse))), rounded_codes(mul(load(x + 16), set1(inverse)))};
}

// rest = x - scale * code, or zeros where there is no reciprocal.
HEADRACE_INLINE void rest_of_block(const float* x, const BlockCodes& codes, float scale, float inverse, float* rest) {
  int8_t bytes[kQuantBlock];
  store_codes(bytes, codes.low);
  store_codes(bytes + 16, codes.high);
  for (int i = 0; i < kQuantBlock; i += 16) {
    const V16 left = sub(load(x + i), mul(set1(scale), load_i8(bytes + i)));
    store(rest + i, inverse == 0.0f ? zero() : left);
  }
}

// Writes the codes, scale and sums of one row's block.
HEADRACE_INLINE void write_block(const BlockCodes& codes, float scale, const BlockPlace& place) {
  const int32_t low_sum = sum_codes(codes.low), high_sum = sum_codes(codes.high);
  const int64_t stride = 4 * place.tile_rows;
  uint8_t* to = place.block + 4 * place.row;
  const auto put = [&](auto value) {
    memcpy(to, &value, sizeof value);
    to += stride;
  };
  put(four_codes<0>(codes.low));
  put(four_codes<1>(codes.low));
  put(four_codes<2>(codes.low));
  put(four_codes<3>(codes.low));
  put(four_codes<0>(codes.high));
  put(four_codes<1>(codes.high));
  put(four_codes<2>(codes.high));
  put(four_codes<3>(codes.high));
  // In the order of ActivationField.
  put(scale);
  put(scale * (float)(low_sum + high_sum));
  put(scale * (float)low_sum);
  put(scale * (float)high_sum);
  put(-(low_sum + high_sum));
  put(-low_sum);
  put(-high_sum);
}

// Writes what the codes of a block leave over, as a block of its own.
HEADRACE_INLINE void write_second_term(const float* x, const BlockCodes& codes, float scale, float inverse,
                                       const BlockPlace& place) {
  float rest[kQuantBlock], rest_scale, rest_inverse;
  rest_of_block(x, codes, scale, inverse, rest);
  const int32_t bits = magnitude_bits(rest);
  block_scales(&bits, 1, &rest_scale, &rest_inverse);
  write_block(block_codes(rest, rest_inverse), rest_scale, place);
}

// The blocks with the `wanted` largest magnitudes, ascending; of equal ones the first. Block b's is amax[b * stride].
void choose_outliers(const int32_t* amax, int64_t stride, int64_t blocks, int64_t wanted, int32_t* index) {
  // The best so far, largest first: few later blocks enter the list, and each moves few entries.
  int64_t found = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t magnitude = amax[b * stride];
    if (found == wanted && magnitude <= amax[index[found - 1] * stride]) continue;
    int64_t at = found < wanted ? found++ : found - 1;
    for (; at > 0 && amax[index[at - 1] * stride] < magnitude; --at) index[at] = index[at - 1];
    index[at] = (int32_t)b;
  }
  for (int64_t i = 1; i < wanted; ++i) {
    const int32_t moved = index[i];
    int64_t at = i;
    for (; at > 0 && index[at - 1] > moved; --at) index[at] = index[at - 1];
    index[at] = moved;
  }
}

// The outlier records of a row whose magnitudes are amax[b * stride].
void write_outliers(const float* x, const int32_t* amax, int64_t stride, int64_t blocks, int64_t per_row,
                    uint8_t* records, int32_t* index) {
  choose_outliers(amax, stride, blocks, per_row, index);
  for (int64_t n = 0; n < per_row; ++n, records += kActivationBytes) {
    const int64_t b = index[n];
    float scale, inverse;
    block_scales(amax + b * stride, 1, &scale, &inverse);
    const float* block = x + b * kQuantBlock;
    write_second_term(block, block_codes(block, inverse), scale, inverse, {records, 1, 0});
  }
}

#if HEADRACE_VECTOR_BITS == 512
// The blocks of a row that is a tile by itself; amax [blocks] gets the bits of their largest magnitudes.
void quantize_row_alone(const float* x, int64_t blocks, uint8_t* tile, int32_t* amax) {
  int64_t b = 0;
  for (; b + kRowLanes <= blocks; b += kRowLanes) {
    quantize_block_lanes(x + b * kQuantBlock, tile + b * kActivationBytes, amax + b);
  }
  for (; b < blocks; ++b) {
    amax[b] = magnitude_bits(x + b * kQuantBlock);
    float scale, inverse;
    block_scales(amax + b, 1, &scale, &inverse);
    write_block(block_codes(x + b * kQuantBlock, inverse), scale, {tile + b * kActivationBytes, 1, 0});
  }
}
#endif

}  // namespace

void quantized_quantize_tile(const float* x, int64_t first_row, int32_t num_rows, const QuantizedPlane& first,
                             const QuantizedPlane& second, int64_t per_row, uint8_t* records, int32_t* index,
                             float* scratch) {
  const int64_t blocks = first.blocks, cols = blocks * kQuantBlock;
  const int64_t block_bytes = (int64_t)num_rows * kActivationBytes;
  uint8_t* tile = first.bytes + first_row * blocks * kActivationBytes;
  uint8_t* second_tile = second.bytes ? second.bytes + first_row * blocks * kActivationBytes : nullptr;
  records += first_row * per_row * kActivationBytes;
  index += first_row * per_row;
#if HEADRACE_VECTOR_BITS == 512
  if (!second_tile) {
    int32_t* amax = (int32_t*)scratch;
    const int64_t stride = num_rows == 1 ? 1 : kRowLanes;
    if (num_rows == 1) {
      quantize_row_alone(x, blocks, tile, amax);
    } else {
      for (int64_t b = 0; b < blocks; ++b) {
        quantize_row_lanes(x + b * kQuantBlock, cols, num_rows, tile + b * block_bytes, amax + b * kRowLanes);
      }
    }
    for (int32_t r = 0; r < num_rows; ++r) {
      write_outliers(x + r * cols, amax + r, stride, blocks, per_row, records + r * per_row * kActivationBytes,
                     index + r * per_row);
    }
    return;
  }
#endif
  float* scales = scratch;
  float* inverses = scratch + blocks;
  int32_t* amax = (int32_t*)(scratch + 2 * blocks);
  for (int32_t r = 0; r < num_rows; ++r, x += cols) {
    for (int64_t b = 0; b < blocks; ++b) amax[b] = magnitude_bits(x + b * kQuantBlock);
    block_scales(amax, blocks, scales, inverses);
    for (int64_t b = 0; b < blocks; ++b) {
      const float* block = x + b * kQuantBlock;
      const BlockCodes codes = block_codes(block, inverses[b]);
      write_block(codes, scales[b], {tile + b * block_bytes, num_rows, r});
      if (!second_tile) continue;
      write_second_term(block, codes, scales[b], inverses[b], {second_tile + b * block_bytes, num_rows, r});
    }
    if (second_tile) continue;
    write_outliers(x, amax, 1, blocks, per_row, records + r * per_row * kActivationBytes, index + r * per_row);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
