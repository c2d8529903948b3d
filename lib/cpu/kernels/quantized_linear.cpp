// Products of strips of block-format weights with rows of int8 activations.
#include <immintrin.h>
#include <string.h>

#include "cpu/kernels/quantized_entry.h"
#include "cpu/kernels/quantized_unpack.h"
#include "cpu/kernels/quantized_vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// Tiles: kTileVectors vectors of weight lanes times kMaxRows activation rows, sized for the register file.
#if HEADRACE_ISA_LEVEL == 2
constexpr int kMaxTileVectors = 2;  // the two strips of a task
constexpr int kMaxRows = 6;
#elif HEADRACE_ISA_LEVEL == 1
constexpr int kMaxTileVectors = 1;
constexpr int kMaxRows = 4;
#else
constexpr int kMaxTileVectors = 1;
constexpr int kMaxRows = 4;
#endif
// Bytes between the codes, and floats between the scales, of a tile's vectors: with 16 lanes a vector is a strip.
constexpr int64_t kCodeStep = kLanes == 16 ? (int64_t)sizeof(UnpackedStrip) : 4 * kLanes;
constexpr int64_t kScaleStep = kLanes == 16 ? (int64_t)sizeof(UnpackedStrip) / 4 : kLanes;

constexpr bool two_scales(ScaleKind kind) { return kind == ScaleKind::kTwo || kind == ScaleKind::kTwoMin; }
constexpr bool has_minima(ScaleKind kind) { return kind == ScaleKind::kOneMin || kind == ScaleKind::kTwoMin; }

// Rows of a plane, from some row and block on.
struct Rows {
  const int8_t* codes;
  const float* scales;
  const float* block_sums;
  const float* half_sums;
  const int32_t* block_minus;
  const int32_t* half_minus;
  int64_t stride;  // blocks between rows
};

Rows rows_from(const QuantizedPlane& plane, int64_t row, int64_t block) {
  const int64_t at = row * plane.blocks + block;
  return {plane.codes + at * kQuantBlock, plane.scales + at,       plane.block_sums + at, plane.half_sums + 2 * at,
          plane.block_minus + at,         plane.half_minus + 2 * at, plane.blocks};
}

// Exact sums of products over kGroups groups of 4 k from `group` on, offsets taken out.
template <int V, int R, CodeKind C, bool kOffset, int kGroups>
HEADRACE_INLINE void integer_sums(const uint8_t* codes, const int8_t* activations, int64_t stride,
                                  const int32_t* minus, int64_t minus_stride, int shift, IntVec (*sums)[R]) {
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const IntVec start = kOffset ? int_shift_left(int_set1(minus[r * minus_stride]), shift) : int_zero();
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) sums[v][r] = start;
  }
#if HEADRACE_ISA_LEVEL == 2
  HEADRACE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    IntVec w[V];
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) w[v] = int_load(codes + v * kCodeStep + 64 * g);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const IntVec a = int_set1(load_four(activations + r * stride + 4 * g));
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) sums[v][r] = _mm512_dpbusd_epi32(sums[v][r], w[v], a);
    }
  }
#else
  // Groups whose 16-bit sums cannot saturate: 2 * 15 * 127 * 8, 2 * 31 * 127 * 4, 2 * 63 * 127 * 2 and
  // 2 * 128 * 127 all stay below 32768.
  constexpr int kSafe = C == CodeKind::kUpTo15 ? 8 : C == CodeKind::kUpTo31 ? 4 : C == CodeKind::kUpTo63 ? 2 : 1;
  constexpr int kRun = kSafe < kGroups ? kSafe : kGroups;
  HEADRACE_UNROLL
  for (int first = 0; first < kGroups; first += kRun) {
    IntVec pairs[V][R];
    HEADRACE_UNROLL
    for (int g = 0; g < kRun; ++g) {
      IntVec w[V], magnitude[V];
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) {
        w[v] = int_load(codes + v * kCodeStep + 64 * (first + g));
        magnitude[v] = C == CodeKind::kSigned8 ? abs_bytes(w[v]) : w[v];
      }
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const IntVec a = int_set1(load_four(activations + r * stride + 4 * (first + g)));
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

// Adds weight block w times activation block a of each row: the arithmetic that quantized_kernels.h states.
template <int V, int R, ScaleKind K, CodeKind C>
HEADRACE_INLINE void add_block(const uint8_t* codes, const float* scales, const float* minima, int64_t w,
                               const Rows& rows, int64_t a, int shift, FloatVec (*acc)[R]) {
  constexpr bool kOffset = !has_minima(K) && (HEADRACE_ISA_LEVEL == 2 || C != CodeKind::kSigned8);
  const uint8_t* block = codes + w * kBlockCodes;
  const int8_t* activations = rows.codes + a * kQuantBlock;
  const int64_t stride = rows.stride * kQuantBlock;
  IntVec sums[V][R];
  if constexpr (!two_scales(K)) {
    integer_sums<V, R, C, kOffset, 8>(block, activations, stride, rows.block_minus + a, rows.stride, shift, sums);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const FloatVec scale_a = float_set1(rows.scales[r * rows.stride + a]);
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) {
        const FloatVec scale_w = float_load(scales + v * kScaleStep + w * kStripRows);
        acc[v][r] = float_fma(scale_a, float_mul(scale_w, to_float(sums[v][r])), acc[v][r]);
      }
    }
    if constexpr (has_minima(K)) {
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const FloatVec sum_a = float_set1(rows.block_sums[r * rows.stride + a]);
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          acc[v][r] = float_fma(float_load(minima + v * kScaleStep + w * kStripRows), sum_a, acc[v][r]);
        }
      }
    }
  } else {
    FloatVec low[V][R];
    integer_sums<V, R, C, kOffset, 4>(block, activations, stride, rows.half_minus + 2 * a, 2 * rows.stride, shift,
                                      sums);
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) {
      const FloatVec scale_w = float_load(scales + v * kScaleStep + 2 * w * kStripRows);
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) low[v][r] = float_mul(scale_w, to_float(sums[v][r]));
    }
    integer_sums<V, R, C, kOffset, 4>(block + 256, activations + 16, stride, rows.half_minus + 2 * a + 1,
                                      2 * rows.stride, shift, sums);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const FloatVec scale_a = float_set1(rows.scales[r * rows.stride + a]);
      HEADRACE_UNROLL
      for (int v = 0; v < V; ++v) {
        const FloatVec scale_w = float_load(scales + v * kScaleStep + (2 * w + 1) * kStripRows);
        acc[v][r] = float_fma(scale_a, float_fma(scale_w, to_float(sums[v][r]), low[v][r]), acc[v][r]);
      }
    }
    if constexpr (has_minima(K)) {
      HEADRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        HEADRACE_UNROLL
        for (int r = 0; r < R; ++r) {
          const FloatVec sum_a = float_set1(rows.half_sums[2 * (r * rows.stride + a) + half]);
          HEADRACE_UNROLL
          for (int v = 0; v < V; ++v) {
            const FloatVec min = float_load(minima + v * kScaleStep + (2 * w + half) * kStripRows);
            acc[v][r] = float_fma(min, sum_a, acc[v][r]);
          }
        }
      }
    }
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

// Lanes of one tile within a chunk.
struct TileWeights {
  const uint8_t* codes;
  const float* scales;
  const float* minima;
};

// acc [R][kTaskColumns] += `blocks` blocks of R rows.
template <int V, int R, ScaleKind K, CodeKind C>
void tile(const TileWeights& weights, int64_t blocks, const Rows& rows, int shift, float* out) {
  FloatVec acc[V][R];
  load_acc<V, R>(out, acc);
  for (int64_t b = 0; b < blocks; ++b) {
    add_block<V, R, K, C>(weights.codes, weights.scales, weights.minima, b, rows, b, shift, acc);
  }
  store_acc<V, R>(acc, out);
}

// All rows of a plane against one tile's lanes.
template <int V, ScaleKind K, CodeKind C>
void all_rows(const TileWeights& weights, int64_t blocks, const QuantizedPlane& plane, int64_t first_row,
              int64_t num_rows, int64_t first_block, int shift, float* out) {
  int64_t row = 0;
  for (; row + kMaxRows <= num_rows; row += kMaxRows) {
    tile<V, kMaxRows, K, C>(weights, blocks, rows_from(plane, first_row + row, first_block), shift,
                            out + row * kTaskColumns);
  }
  if (row == num_rows) return;
  const Rows rows = rows_from(plane, first_row + row, first_block);
  out += row * kTaskColumns;
  switch (num_rows - row) {
    case 1: return tile<V, 1, K, C>(weights, blocks, rows, shift, out);
    case 2: return tile<V, 2, K, C>(weights, blocks, rows, shift, out);
    case 3: return tile<V, 3, K, C>(weights, blocks, rows, shift, out);
#if HEADRACE_ISA_LEVEL == 2
    case 4: return tile<V, 4, K, C>(weights, blocks, rows, shift, out);
    case 5: return tile<V, 5, K, C>(weights, blocks, rows, shift, out);
#endif
  }
}

// The outlier terms of one row whose blocks lie in the chunk: entries [entry, end) of its list.
template <int V, ScaleKind K, CodeKind C>
void outlier_blocks(const TileWeights& weights, const Rows& row, const int32_t* index, int64_t first_block,
                    int64_t entry, int64_t end, int shift, float* out) {
  FloatVec acc[V][1];
  load_acc<V, 1>(out, acc);
  for (; entry < end; ++entry) {
    add_block<V, 1, K, C>(weights.codes, weights.scales, weights.minima, index[entry] - first_block, row, entry,
                          shift, acc);
  }
  store_acc<V, 1>(acc, out);
}

struct Scratch {
  UnpackedStrip* strips;  // [kTaskStrips]
  float* first;           // [rows][kTaskColumns]
  float* second;
  int32_t* cursors;       // [rows]: entries of the outlier list that are done
};

template <int V, ScaleKind K, CodeKind C>
void chunk_lanes(const QuantizedTask& task, const Scratch& scratch, const TileWeights& weights, int64_t first_block,
                 int64_t blocks, int shift, int64_t column, bool last_lanes) {
  all_rows<V, K, C>(weights, blocks, task.first, task.first_row, task.num_rows, first_block, shift,
                    scratch.first + column);
  if (task.second.blocks == task.blocks) {
    all_rows<V, K, C>(weights, blocks, task.second, task.first_row, task.num_rows, first_block, shift,
                      scratch.second + column);
    return;
  }
  for (int64_t row = 0; row < task.num_rows; ++row) {
    const int64_t n = task.second.blocks;
    const int32_t* index = task.second_index + (task.first_row + row) * n;
    const int64_t entry = scratch.cursors[row];
    int64_t end = entry;
    while (end < n && index[end] < first_block + blocks) ++end;
    if (end == entry) continue;
    outlier_blocks<V, K, C>(weights, rows_from(task.second, task.first_row + row, 0), index, first_block, entry, end,
                            shift, scratch.second + row * kTaskColumns + column);
    if (last_lanes) scratch.cursors[row] = static_cast<int32_t>(end);
  }
}

template <ScaleKind K, CodeKind C>
void run_chunk(const QuantizedTask& task, const Scratch& scratch, int64_t first_block, int64_t blocks) {
#if HEADRACE_ISA_LEVEL == 2
  const int shift = task.layout->code_kind == CodeKind::kSigned8 ? 7 : task.layout->offset_shift;
  const UnpackedStrip* strip = scratch.strips;
  const TileWeights weights = {strip->codes, strip->scales, strip->minima};
  if (task.num_strips == 2) {
    chunk_lanes<2, K, C>(task, scratch, weights, first_block, blocks, shift, 0, true);
  } else {
    chunk_lanes<1, K, C>(task, scratch, weights, first_block, blocks, shift, 0, true);
  }
#else
  constexpr int kTileLanes = kMaxTileVectors * kLanes;
  for (int64_t lane = 0; lane < task.num_strips * kStripRows; lane += kTileLanes) {
    const UnpackedStrip* strip = scratch.strips + lane / kStripRows;
    const int64_t inner = lane % kStripRows;
    const TileWeights weights = {strip->codes + 4 * inner, strip->scales + inner, strip->minima + inner};
    chunk_lanes<kMaxTileVectors, K, C>(task, scratch, weights, first_block, blocks, task.layout->offset_shift, lane,
                                       lane + kTileLanes == task.num_strips * kStripRows);
  }
#endif
}

using RunChunk = void (*)(const QuantizedTask&, const Scratch&, int64_t, int64_t);

// AVX-512's dot product does not care for the range of the codes.
#if HEADRACE_ISA_LEVEL == 2
#define CODES(kind) CodeKind::kSigned8
#else
#define CODES(kind) CodeKind::kind
#endif

RunChunk choose_chunk(ScaleKind scale, CodeKind code) {
  switch (scale) {
    case ScaleKind::kOne:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kOne, CODES(kUpTo15)>;
      if (code == CodeKind::kUpTo31) return run_chunk<ScaleKind::kOne, CODES(kUpTo31)>;
      return run_chunk<ScaleKind::kOne, CODES(kSigned8)>;
    case ScaleKind::kOneMin:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kOneMin, CODES(kUpTo15)>;
      return run_chunk<ScaleKind::kOneMin, CODES(kUpTo31)>;
    case ScaleKind::kTwo:
      if (code == CodeKind::kUpTo15) return run_chunk<ScaleKind::kTwo, CODES(kUpTo15)>;
      if (code == CodeKind::kUpTo63) return run_chunk<ScaleKind::kTwo, CODES(kUpTo63)>;
      return run_chunk<ScaleKind::kTwo, CODES(kSigned8)>;
    case ScaleKind::kTwoMin: return run_chunk<ScaleKind::kTwoMin, CODES(kUpTo15)>;
  }
  return nullptr;
}
#undef CODES

HEADRACE_INLINE void prefetch_bytes(const uint8_t* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) _mm_prefetch((const char*)from + i, _MM_HINT_T0);
}

void write_outputs(const QuantizedTask& task, const Scratch& scratch) {
  for (int64_t row = 0; row < task.num_rows; ++row) {
    float* first = scratch.first + row * kTaskColumns;
    const float* second = scratch.second + row * kTaskColumns;
    float* y = task.y + row * task.y_stride;
    for (int c = 0; c < kTaskColumns; ++c) first[c] += second[c];
    const int columns = task.num_columns;
    if (task.bias) {
      for (int c = 0; c < columns; ++c) first[c] += task.bias[c];
    }
    if (task.accumulate) {
      for (int c = 0; c < columns; ++c) y[c] += first[c];
    } else {
      for (int c = 0; c < columns; ++c) y[c] = first[c];
    }
  }
}

}  // namespace

int64_t quantized_scratch_bytes(int64_t num_rows) {
  const int64_t cursors = (num_rows * 4 + 63) / 64 * 64;
  return kTaskStrips * (int64_t)sizeof(UnpackedStrip) + num_rows * kTaskColumns * 8 + cursors;
}

void quantized_run_task(const QuantizedTask& task) {
  const QuantizedLayout& layout = *task.layout;
  Scratch scratch;
  scratch.strips = (UnpackedStrip*)task.scratch;
  scratch.first = (float*)(task.scratch + kTaskStrips * sizeof(UnpackedStrip));
  scratch.second = scratch.first + task.num_rows * kTaskColumns;
  scratch.cursors = (int32_t*)(scratch.second + task.num_rows * kTaskColumns);
  memset(scratch.first, 0, (size_t)task.num_rows * (kTaskColumns * 8 + 4));

  const RunChunk run = choose_chunk(layout.scale_kind, layout.code_kind);
  // Few rows: small chunks, so that reading the weights and multiplying overlap.
  const int64_t chunk_blocks = task.num_rows <= kMaxRows ? kMaxRecordBlocks : kMaxChunkBlocks;
  const int64_t chunk_records = chunk_blocks / layout.record_blocks;
  const int64_t num_records = task.blocks / layout.record_blocks;
  for (int64_t record = 0; record < num_records; record += chunk_records) {
    const int64_t left = num_records - record;
    const int64_t count = left < chunk_records ? left : chunk_records;
    for (int strip = 0; strip < task.num_strips; ++strip) {
      const uint8_t* from = task.strips + strip * task.strip_bytes + record * layout.record_bytes;
      if (left > count) {
        const int64_t next = left - count < chunk_records ? left - count : chunk_records;
        prefetch_bytes(from + count * layout.record_bytes, next * layout.record_bytes);
      }
      unpack_records(layout, from, count, scratch.strips + strip);
    }
    run(task, scratch, record * layout.record_blocks, count * layout.record_blocks);
  }
  write_outputs(task, scratch);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
