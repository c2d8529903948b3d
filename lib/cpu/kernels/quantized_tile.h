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
constexpr bool has_minima(ScaleKind kind) { return kind == ScaleKind::kOneMin || kind == ScaleKind::kTwoMin; }

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

// Exact sums of products over kGroups groups of 4 k from kFirst on, offsets taken out.
// activations: a block of kStride rows, moved to the first of R; minus: the field that holds minus the sum of its codes here.
template <int V, int R, CodeKind C, bool kOffset, int kFirst, int kGroups, int kStride = R, class Groups>
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

// add_block for two scales, of kRows rows from kFirstRow on.
template <int V, int R, int kFirstRow, int kRows, ScaleKind K, CodeKind C, bool kOffset, class Groups>
HEADRACE_INLINE void add_two_scales(const TileWeights<Groups>& weights, int64_t w, const uint8_t* activations,
                                    int shift, FloatVec (*acc)[R]) {
  activations += 4 * kFirstRow;
  IntVec sums[V][kRows];
  FloatVec low[V][kRows];
  integer_sums<V, kRows, C, kOffset, 0, 4, R>(weights.groups, w, activations, kMinusLow, shift, sums);
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    const FloatVec scale_w = float_load(weights.scales + lane_step(v, kStripFloats, 1) + 2 * w * kStripRows);
    HEADRACE_UNROLL
    for (int r = 0; r < kRows; ++r) low[v][r] = float_mul(scale_w, to_float(sums[v][r]));
  }
  integer_sums<V, kRows, C, kOffset, 4, 4, R>(weights.groups, w, activations, kMinusHigh, shift, sums);
  HEADRACE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const FloatVec scale_a = float_set1(field_of<R, float>(activations, kScale, r));
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) {
      const FloatVec scale_w = float_load(weights.scales + lane_step(v, kStripFloats, 1) + (2 * w + 1) * kStripRows);
      FloatVec& sum = acc[v][kFirstRow + r];
      sum = float_fma(scale_a, float_fma(scale_w, to_float(sums[v][r]), low[v][r]), sum);
    }
  }
  if constexpr (has_minima(K)) {
    HEADRACE_UNROLL
    for (int half = 0; half < 2; ++half) {
      HEADRACE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const FloatVec sum_a = float_set1(field_of<R, float>(activations, kLowSum + half, r));
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          const FloatVec min = float_load(weights.minima + lane_step(v, kStripFloats, 1) + (2 * w + half) * kStripRows);
          FloatVec& sum = acc[v][kFirstRow + r];
          sum = float_fma(min, sum_a, sum);
        }
      }
    }
  }
}

// Adds weight block w times a block of R rows of activations: the arithmetic that quantized_kernels.h states.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void add_block(const TileWeights<Groups>& weights, int64_t w, const uint8_t* activations, int shift,
                               FloatVec (*acc)[R]) {
  constexpr bool kOffset = !has_minima(K) && (kExactDot || C != CodeKind::kSigned8);
  const float* scales = weights.scales;
  const float* minima = weights.minima;
  IntVec sums[V][R];
  if constexpr (!two_scales(K)) {
    integer_sums<V, R, C, kOffset, 0, 8>(weights.groups, w, activations, kMinusSum, shift, sums);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const FloatVec scale_a = float_set1(field_of<R, float>(activations, kScale, r));
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) {
        const FloatVec scale_w = float_load(scales + lane_step(v, kStripFloats, 1) + w * kStripRows);
        acc[v][r] = float_fma(scale_a, float_mul(scale_w, to_float(sums[v][r])), acc[v][r]);
      }
    }
    if constexpr (has_minima(K)) {
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const FloatVec sum_a = float_set1(field_of<R, float>(activations, kSum, r));
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          acc[v][r] = float_fma(float_load(minima + lane_step(v, kStripFloats, 1) + w * kStripRows), sum_a, acc[v][r]);
        }
      }
    }
  } else if constexpr (V * R > kMostTwoScaleSums) {
    // Sums of both halves of the block at once would not fit into the registers: one half of the rows, then the other.
    add_two_scales<V, R, 0, R / 2, K, C, kOffset>(weights, w, activations, shift, acc);
    add_two_scales<V, R, R / 2, R - R / 2, K, C, kOffset>(weights, w, activations, shift, acc);
  } else {
    add_two_scales<V, R, 0, R, K, C, kOffset>(weights, w, activations, shift, acc);
  }
}

template <int V, int R>
HEADRACE_INLINE void load_acc(const float* from, FloatVec (*acc)[R]) {
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) acc[v][r] = float_load(from + r * kTaskColumns + v * kLanes);
  }
}

template <int V, int R>
HEADRACE_INLINE void store_acc(const FloatVec (*acc)[R], float* to) {
  HEADRACE_UNROLL
  for (int v = 0; v < V; ++v) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) float_store(to + r * kTaskColumns + v * kLanes, acc[v][r]);
  }
}

// out [R][kTaskColumns] += `blocks` blocks of a tile of R rows.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void tile(const TileWeights<Groups>& weights, int64_t blocks, const uint8_t* activations, int shift,
                          float* out) {
  FloatVec acc[V][R];
  load_acc<V, R>(out, acc);
  for (int64_t b = 0; b < blocks; ++b) {
    add_block<V, R, K, C>(weights, b, activations, shift, acc);
    activations += R * kActivationBytes;
  }
  store_acc<V, R>(acc, out);
}

struct Scratch {
  UnpackedStrip* strips;  // [kTaskStrips]
  float* first;           // [rows][kTaskColumns]
  float* second;          // [rows + 1][kTaskColumns]: the last takes what belongs to other tasks
};

// One tile of entries of a block: rows[i] is the row of entry i within the task.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void outlier_tile(const TileWeights<Groups>& weights, int64_t block, const uint8_t* activations,
                                  float* const* rows, int shift) {
  FloatVec acc[V][R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) acc[v][r] = float_load(rows[r] + v * kLanes);
  }
  add_block<V, R, K, C>(weights, block, activations, shift, acc);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) float_store(rows[r] + v * kLanes, acc[v][r]);
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
          size, [&](auto count) __attribute__((always_inline)) {
            outlier_tile<V, decltype(count)::value, K, C>(weights, block, at, rows, shift);
          });
    }
  }
}

// The tasks' columns cut each row of y into short pieces on pages of their own: worth asking for ahead.
constexpr int64_t kOutputsAhead = 12;
HEADRACE_INLINE void fetch_output(const QuantizedTask& task, int64_t row) {
  if (row >= task.num_rows) return;
  const float* y = task.y + row * task.y_stride;
  __builtin_prefetch(y, 1);
  __builtin_prefetch(y + task.num_columns - 1, 1);
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
