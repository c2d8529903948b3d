// The register tile of the block-format products: a few rows of activations times one or two vectors of weight lanes,
// block after block, in the arithmetic that quantized_kernels.h states.
#pragma once

#include <string.h>

#include "cpu/kernels/quantized_entry.h"
#include "cpu/kernels/quantized_groups.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// Tiles are kMaxRows rows, or what is left, times kMaxVectors vectors of weight lanes (on AVX-512 two strips).
constexpr int kMaxRows = kQuantizedTileRows;
constexpr int kMaxVectors = kExactDot ? 2 : 1;

template <int N>
struct RowCount {
  static constexpr int value = N;
};
// Calls function(RowCount<rows>()), for 1..kMaxRows rows.
template <class Function>
HEADRACE_INLINE void with_rows(int64_t rows, const Function& function) {
  switch (rows) {
    case 1: return function(RowCount<1>());
    case 2: return function(RowCount<2>());
    case 3: return function(RowCount<3>());
#if HEADRACE_VECTOR_REGISTERS == 32
    case 4: return function(RowCount<4>());
    case 5: return function(RowCount<5>());
#endif
    default: return function(RowCount<kMaxRows>());
  }
}

constexpr bool two_scales(ScaleKind kind) { return kind == ScaleKind::kTwo || kind == ScaleKind::kTwoMin; }
constexpr bool has_unsigned_minima(ScaleKind kind) { return kind == ScaleKind::kOneMin || kind == ScaleKind::kTwoMin; }
constexpr bool has_minima(ScaleKind kind) { return has_unsigned_minima(kind) || kind == ScaleKind::kOneMinSigned; }

// Sums of one half of a block that fit into the registers beside those of the other half and the accumulators.
constexpr int kMostTwoScaleSums = kVectorRegisters == 32 ? 8 : kExactDot ? 4 : 3;

// What integer_sums shifts the sums of the activations' codes by.
HEADRACE_INLINE int offset_shift(const QuantizedLayout& layout) {
  return kUnsignedDot && layout.code_kind == CodeKind::kSigned8 ? 7 : layout.offset_shift;
}

// Field `field` of row r in a block of R rows.
template <int R, class T>
HEADRACE_INLINE T field_of(const uint8_t* block, int field, int r) {
  T value;
  memcpy(&value, block + kQuantBlock * R + 4 * (field * R + r), sizeof value);
  return value;
}

// The weights of one tile's lanes in a chunk.
template <class Groups>
struct TileWeights {
  Groups groups;
  const float* scales;
  const float* minima;
};

// Exact sums of products over kGroups groups of 4 k from kFirst on, offsets taken out. activations: a block of kStride
// rows, moved to the first of R; minus: the field that holds minus the sum of its codes here.
template <int V, int R, CodeKind C, bool kOffset, int kFirst, int kGroups, int kStride, class Groups>
HEADRACE_INLINE void integer_sums(const Groups& groups, int64_t block, const uint8_t* activations, int minus, int shift,
                                  IntVec (*sums)[R]) {
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const IntVec start =
        kOffset ? int_shift_left(int_set1(field_of<kStride, int32_t>(activations, minus, r)), shift) : int_zero();
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) sums[v][r] = start;
  }
#if HEADRACE_EXACT_DOT
  HEADRACE_UNROLL
  for (int g = kFirst; g < kFirst + kGroups; ++g) {
    IntVec w[V];
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) w[v] = groups.group(block, v, g);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const IntVec a = int_set1(load_four(activations + 4 * (g * kStride + r)));
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) sums[v][r] = dot(sums[v][r], w[v], a);
    }
  }
#else
  // Groups whose 16-bit sums cannot saturate: 2 * 15 * 127 * 8, 2 * 31 * 127 * 4, 2 * 63 * 127 * 2 and
  // 2 * 128 * 127 all stay below 32768.
  constexpr int kSafe = C == CodeKind::kUpTo15 ? 8 : C == CodeKind::kUpTo31 ? 4 : C == CodeKind::kUpTo63 ? 2 : 1;
  constexpr int kRun = kSafe < kGroups ? kSafe : kGroups;
  HEADRACE_UNROLL
  for (int first = kFirst; first < kFirst + kGroups; first += kRun) {
    IntVec pairs[V][R];
    HEADRACE_UNROLL
    for (int g = 0; g < kRun; ++g) {
      IntVec w[V], magnitude[V];
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) {
        w[v] = groups.group(block, v, first + g);
        magnitude[v] = C == CodeKind::kSigned8 ? abs_bytes(w[v]) : w[v];
      }
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const IntVec a = int_set1(load_four(activations + 4 * ((first + g) * kStride + r)));
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          const IntVec product = multiply_pairs(magnitude[v], C == CodeKind::kSigned8 ? sign_bytes(a, w[v]) : a);
          pairs[v][r] = g == 0 ? product : short_add(pairs[v][r], product);
        }
      }
    }
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) sums[v][r] = int_add(sums[v][r], widen_pairs(pairs[v][r]));
    }
  }
#endif
}

// Rows of a tile of R that are computed together. Formats with two scales have two sums of each, which must fit into the
// registers beside the accumulators.
template <int V, int R, ScaleKind K>
constexpr int rows_together() {
  return two_scales(K) && V * R > kMostTwoScaleSums ? R / 2 : R;
}

// Adds weight block w times R rows of a block of kStride rows of activations, moved to the first of them: the arithmetic
// that quantized_kernels.h states.
template <int V, int R, int kStride, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void add_block(const TileWeights<Groups>& weights, int64_t w, const uint8_t* activations, int shift,
                               FloatVec (*acc)[R]) {
  constexpr bool kOffset = !has_unsigned_minima(K) && (kExactDot || C != CodeKind::kSigned8);
  constexpr int kScales = two_scales(K) ? 2 : 1;
  const auto scale_of = [&](const float* values, int v, int part) __attribute__((always_inline)) {
    return float_load(values + lane_step(v, kStripFloats, 1) + (kScales * w + part) * kStripRows);
  };
  IntVec sums[V][R];
  integer_sums<V, R, C, kOffset, 0, 8 / kScales, kStride>(weights.groups, w, activations,
                                                          two_scales(K) ? kMinusLow : kMinusSum, shift, sums);
  FloatVec products[V][R];
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    const FloatVec scale = scale_of(weights.scales, v, 0);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) products[v][r] = float_mul(scale, to_float(sums[v][r]));
  }
  if constexpr (two_scales(K)) {
    integer_sums<V, R, C, kOffset, 4, 4, kStride>(weights.groups, w, activations, kMinusHigh, shift, sums);
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) {
      const FloatVec scale = scale_of(weights.scales, v, 1);
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) products[v][r] = float_fma(scale, to_float(sums[v][r]), products[v][r]);
    }
  }
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const FloatVec scale_a = float_set1(field_of<kStride, float>(activations, kScale, r));
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) acc[v][r] = float_fma(scale_a, products[v][r], acc[v][r]);
  }
  if constexpr (has_minima(K)) {
    HEADRACE_UNROLL
    for (int part = 0; part < kScales; ++part) {
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const int field = two_scales(K) ? kLowSum + part : kSum;
        const FloatVec sum_a = float_set1(field_of<kStride, float>(activations, field, r));
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          acc[v][r] = float_fma(scale_of(weights.minima, v, part), sum_a, acc[v][r]);
        }
      }
    }
  }
}

// The tasks' columns cut each row of y into short pieces on pages of their own: worth asking for ahead.
HEADRACE_INLINE void fetch_output(const float* y, int64_t columns) {
  __builtin_prefetch(y, 1);
  __builtin_prefetch(y + columns - 1, 1);
}

// Where a tile's sums come from and go to; pointers are of its first row and lane.
struct TileSums {
  float* sums;                    // [R][kTaskColumns]
  bool begins = false;            // with zeros, not with what is in sums
  const float* second = nullptr;  // [R][kTaskColumns] what is added in the end; null: the sums go back to `sums`
  const float* bias = nullptr;
  float* y = nullptr;  // with second: rows y_stride apart, of kTaskColumns columns
  int64_t y_stride = 0;
  bool accumulate = false;

  HEADRACE_INLINE_MEMBER TileSums at(int64_t row, int64_t lane) const {
    const int64_t offset = row * kTaskColumns + lane;
    return {sums + offset,
            begins,
            second ? second + offset : nullptr,
            bias ? bias + lane : nullptr,
            y + row * y_stride + lane,
            y_stride,
            accumulate};
  }
};

template <int V, int R>
HEADRACE_INLINE void load_acc(const TileSums& from, FloatVec (*acc)[R]) {
  if (from.second) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) fetch_output(from.y + r * from.y_stride, V * kLanes);
  }
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      acc[v][r] = from.begins ? float_set1(0.0f) : float_load(from.sums + r * kTaskColumns + v * kLanes);
    }
  }
}

template <int V, int R>
HEADRACE_INLINE void store_acc(const FloatVec (*acc)[R], const TileSums& to) {
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const int64_t offset = r * kTaskColumns + v * kLanes;
      if (!to.second) {
        float_store(to.sums + offset, acc[v][r]);
        continue;
      }
      float* const y = to.y + r * to.y_stride + v * kLanes;
      FloatVec sum = float_add(acc[v][r], float_load(to.second + offset));
      if (to.bias) sum = float_add(sum, float_load(to.bias + v * kLanes));
      if (to.accumulate) sum = float_add(float_load(y), sum);
      float_store(y, sum);
    }
  }
}

// Adds `blocks` blocks of R rows of a tile of kStride to the sums.
template <int V, int R, int kStride, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void rows_of_tile(const TileWeights<Groups>& weights, int64_t blocks, const uint8_t* activations,
                                  int shift, const TileSums& sums) {
  FloatVec acc[V][R];
  load_acc<V, R>(sums, acc);
  for (int64_t b = 0; b < blocks; ++b) {
    add_block<V, R, kStride, K, C>(weights, b, activations, shift, acc);
    activations += kStride * kActivationBytes;
  }
  store_acc<V, R>(acc, sums);
}

// Adds `blocks` blocks of a tile of R rows to the sums.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void tile(const TileWeights<Groups>& weights, int64_t blocks, const uint8_t* activations, int shift,
                          const TileSums& sums) {
  constexpr int kFirst = rows_together<V, R, K>(), kRest = R - kFirst;
  rows_of_tile<V, kFirst, R, K, C>(weights, blocks, activations, shift, sums);
  if constexpr (kRest > 0) {
    rows_of_tile<V, kRest, R, K, C>(weights, blocks, activations + 4 * kFirst, shift, sums.at(kFirst, 0));
  }
}

struct Scratch {
  UnpackedStrip* strips;  // [kTaskStrips]
  float* first;           // [rows][kTaskColumns]
  float* second;          // [rows + 1][kTaskColumns]: the last takes what belongs to other tasks
};

// R entries of a block's tile of kStride: rows[i] is where the sums of entry i are.
template <int V, int R, int kStride, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void outlier_rows(const TileWeights<Groups>& weights, int64_t block, const uint8_t* activations,
                                  float* const* rows, int shift) {
  FloatVec acc[V][R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) acc[v][r] = float_load(rows[r] + v * kLanes);
  }
  add_block<V, R, kStride, K, C>(weights, block, activations, shift, acc);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) float_store(rows[r] + v * kLanes, acc[v][r]);
  }
}

template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void outlier_tile(const TileWeights<Groups>& weights, int64_t block, const uint8_t* activations,
                                  float* const* rows, int shift) {
  constexpr int kFirst = rows_together<V, R, K>(), kRest = R - kFirst;
  outlier_rows<V, kFirst, R, K, C>(weights, block, activations, rows, shift);
  if constexpr (kRest > 0) {
    outlier_rows<V, kRest, R, K, C>(weights, block, activations + 4 * kFirst, rows + kFirst, shift);
  }
}

// The outlier terms of the chunk's blocks. A row's blocks come in ascending order.
template <int V, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void outlier_blocks(const QuantizedTask& task, const TileWeights<Groups>& weights, int64_t first_block,
                                    int64_t blocks, int shift, float* out) {
  const OutlierPlane& plane = task.outliers;
  const int64_t group = task.first_row / kOutlierGroupRows;
  const int64_t group_entry = group * kOutlierGroupRows * plane.per_row;
  const int32_t* starts = plane.starts + group * (task.blocks + 1);
  const int32_t* entry_rows = plane.rows + group_entry;
  const uint8_t* bytes = plane.bytes + group_entry * kActivationBytes;
  const int32_t begin = static_cast<int32_t>(task.first_row - group * kOutlierGroupRows);
  const int32_t count = static_cast<int32_t>(task.num_rows);
  for (int64_t b = first_block; b < first_block + blocks; ++b) {
    const int32_t end = starts[b + 1];
    for (int32_t entry = starts[b]; entry < end; entry += kMaxRows) {
      const int32_t size = end - entry < kMaxRows ? end - entry : kMaxRows;
      if (entry_rows[entry + size - 1] < begin) continue;
      if (entry_rows[entry] >= begin + count) break;
      float* rows[kMaxRows];
      for (int32_t i = 0; i < size; ++i) {
        const uint32_t row = static_cast<uint32_t>(entry_rows[entry + i] - begin);
        rows[i] = out + (row < static_cast<uint32_t>(count) ? row : static_cast<uint32_t>(count)) * kTaskColumns;
      }
      const uint8_t* at = bytes + entry * static_cast<int64_t>(kActivationBytes);
      const int64_t block = b - first_block;
      with_rows(
          size, [&](auto entries) __attribute__((always_inline)) {
            outlier_tile<V, decltype(entries)::value, K, C>(weights, block, at, rows, shift);
          });
    }
  }
}

constexpr int64_t kOutputsAhead = 12;
HEADRACE_INLINE void fetch_output(const QuantizedTask& task, int64_t row) {
  if (row < task.num_rows) fetch_output(task.y + row * task.y_stride, task.num_columns);
}

HEADRACE_INLINE void write_outputs(const QuantizedTask& task, const Scratch& scratch) {
  for (int64_t row = 0; row < kOutputsAhead; ++row) fetch_output(task, row);
  for (int64_t row = 0; row < task.num_rows; ++row) {
    fetch_output(task, row + kOutputsAhead);
    float* first = scratch.first + row * kTaskColumns;
    const float* second = scratch.second + row * kTaskColumns;
    float* y = task.y + row * task.y_stride;
    if (task.num_columns == kTaskColumns) {
      HEADRACE_UNROLL
      for (int c = 0; c < kTaskColumns; c += kLanes) {
        FloatVec sum = float_add(float_load(first + c), float_load(second + c));
        if (task.bias) sum = float_add(sum, float_load(task.bias + c));
        if (task.accumulate) sum = float_add(float_load(y + c), sum);
        float_store(y + c, sum);
      }
      continue;
    }
    for (int c = 0; c < task.num_columns; ++c) {
      float sum = first[c] + second[c];
      if (task.bias) sum += task.bias[c];
      y[c] = task.accumulate ? y[c] + sum : sum;
    }
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
