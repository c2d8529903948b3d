// Products of strips of block-format weights with rows of int8 activations.
#include <immintrin.h>
#include <string.h>

#include "cpu/kernels/quantized_entry.h"
#include "cpu/kernels/quantized_groups.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// Tiles are up to two vectors of weight lanes (AVX-512: the two strips of a task; else one) times kMaxRows rows.
constexpr int kMaxRows = kQuantizedTileRows;

constexpr bool two_scales(ScaleKind kind) { return kind == ScaleKind::kTwo || kind == ScaleKind::kTwoMin; }
constexpr bool has_minima(ScaleKind kind) { return kind == ScaleKind::kOneMin || kind == ScaleKind::kTwoMin; }

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
// activations: a block; minus: the field that holds minus the sum of its codes here.
template <int V, int R, CodeKind C, bool kOffset, int kFirst, int kGroups, class Groups>
HEADRACE_INLINE void integer_sums(const Groups& groups, int64_t block, const uint8_t* activations, int minus, int shift,
                                  IntVec (*sums)[R]) {
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const IntVec start =
        kOffset ? int_shift_left(int_set1(field_of<R, int32_t>(activations, minus, r)), shift) : int_zero();
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) sums[v][r] = start;
  }
#if HEADRACE_ISA_LEVEL == 2
  HEADRACE_UNROLL
  for (int g = kFirst; g < kFirst + kGroups; ++g) {
    IntVec w[V];
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) w[v] = groups.group(block, v, g);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const IntVec a = int_set1(load_four(activations + 4 * (g * R + r)));
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
        const IntVec a = int_set1(load_four(activations + 4 * ((first + g) * R + r)));
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

// Adds weight block w times a block of R rows of activations: the arithmetic that quantized_kernels.h states.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
HEADRACE_INLINE void add_block(const TileWeights<Groups>& weights, int64_t w, const uint8_t* activations, int shift,
                               FloatVec (*acc)[R]) {
  constexpr bool kOffset = !has_minima(K) && (HEADRACE_ISA_LEVEL == 2 || C != CodeKind::kSigned8);
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
        const FloatVec scale_w = float_load(scales + v * kScaleStep + w * kStripRows);
        acc[v][r] = float_fma(scale_a, float_mul(scale_w, to_float(sums[v][r])), acc[v][r]);
      }
    }
    if constexpr (has_minima(K)) {
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const FloatVec sum_a = float_set1(field_of<R, float>(activations, kSum, r));
        HEADRACE_UNROLL
        for (int v = 0; v < V; ++v) {
          acc[v][r] = float_fma(float_load(minima + v * kScaleStep + w * kStripRows), sum_a, acc[v][r]);
        }
      }
    }
  } else {
    FloatVec low[V][R];
    integer_sums<V, R, C, kOffset, 0, 4>(weights.groups, w, activations, kMinusLow, shift, sums);
    HEADRACE_UNROLL
    for (int v = 0; v < V; ++v) {
      const FloatVec scale_w = float_load(scales + v * kScaleStep + 2 * w * kStripRows);
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) low[v][r] = float_mul(scale_w, to_float(sums[v][r]));
    }
    integer_sums<V, R, C, kOffset, 4, 4>(weights.groups, w, activations, kMinusHigh, shift, sums);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const FloatVec scale_a = float_set1(field_of<R, float>(activations, kScale, r));
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
          const FloatVec sum_a = float_set1(field_of<R, float>(activations, kLowSum + half, r));
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

// out [R][kTaskColumns] += `blocks` blocks of a tile of R rows.
template <int V, int R, ScaleKind K, CodeKind C, class Groups>
void tile(const TileWeights<Groups>& weights, int64_t blocks, const uint8_t* activations, int shift, float* out) {
  FloatVec acc[V][R];
  load_acc<V, R>(out, acc);
  for (int64_t b = 0; b < blocks; ++b) {
    add_block<V, R, K, C>(weights, b, activations, shift, acc);
    activations += R * kActivationBytes;
  }
  store_acc<V, R>(acc, out);
}

// All rows of a plane against one tile's lanes.
template <int V, ScaleKind K, CodeKind C, class Groups>
void all_rows(const TileWeights<Groups>& weights, int64_t blocks, const QuantizedPlane& plane, int64_t first_row,
              int64_t num_rows, int64_t first_block, int shift, float* out) {
  const int64_t row_bytes = plane.blocks * kActivationBytes;
  const uint8_t* from = plane.bytes + first_row * row_bytes;
  int64_t left = num_rows;
  for (; left >= kMaxRows; left -= kMaxRows) {
    tile<V, kMaxRows, K, C>(weights, blocks, from + first_block * kMaxRows * kActivationBytes, shift, out);
    from += kMaxRows * row_bytes;
    out += kMaxRows * kTaskColumns;
  }
  from += first_block * left * kActivationBytes;
  switch (left) {
    case 1: return tile<V, 1, K, C>(weights, blocks, from, shift, out);
    case 2: return tile<V, 2, K, C>(weights, blocks, from, shift, out);
    case 3: return tile<V, 3, K, C>(weights, blocks, from, shift, out);
#if HEADRACE_ISA_LEVEL == 2
    case 4: return tile<V, 4, K, C>(weights, blocks, from, shift, out);
    case 5: return tile<V, 5, K, C>(weights, blocks, from, shift, out);
#endif
  }
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
void outlier_blocks(const QuantizedTask& task, const TileWeights<Groups>& weights, int64_t first_block, int64_t blocks,
                    int shift, float* out) {
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
      switch (size) {
        case 1: outlier_tile<V, 1, K, C>(weights, block, at, rows, shift); break;
        case 2: outlier_tile<V, 2, K, C>(weights, block, at, rows, shift); break;
        case 3: outlier_tile<V, 3, K, C>(weights, block, at, rows, shift); break;
#if HEADRACE_ISA_LEVEL == 2
        case 4: outlier_tile<V, 4, K, C>(weights, block, at, rows, shift); break;
        case 5: outlier_tile<V, 5, K, C>(weights, block, at, rows, shift); break;
#endif
        default: outlier_tile<V, kMaxRows, K, C>(weights, block, at, rows, shift);
      }
    }
  }
}

// Every row of the task against one tile's lanes, first_lane on, of a chunk.
template <int V, ScaleKind K, CodeKind C, class Groups>
void chunk_lanes(const QuantizedTask& task, const Scratch& scratch, const Groups& groups, int64_t first_lane,
                 int64_t first_block, int64_t blocks, int shift) {
  const UnpackedStrip* strip = scratch.strips + first_lane / kStripRows;
  const int64_t inner = first_lane % kStripRows;
  const TileWeights<Groups> weights = {groups, strip->scales + inner, strip->minima + inner};
  all_rows<V, K, C>(weights, blocks, task.first, task.first_row, task.num_rows, first_block, shift,
                    scratch.first + first_lane);
  if (task.second.bytes) {
    all_rows<V, K, C>(weights, blocks, task.second, task.first_row, task.num_rows, first_block, shift,
                      scratch.second + first_lane);
  } else {
    outlier_blocks<V, K, C>(task, weights, first_block, blocks, shift, scratch.second + first_lane);
  }
}

// A chunk, tile by tile. groups_at(lane): the weights of a tile that starts with that lane.
template <ScaleKind K, CodeKind C, class GroupsAt>
HEADRACE_INLINE void chunk_tiles(const QuantizedTask& task, const Scratch& scratch, const GroupsAt& groups_at,
                                 int64_t first_block, int64_t blocks) {
#if HEADRACE_ISA_LEVEL == 2
  const int shift = task.layout->code_kind == CodeKind::kSigned8 ? 7 : task.layout->offset_shift;
  if (task.num_strips == 2) {
    chunk_lanes<2, K, C>(task, scratch, groups_at(0), 0, first_block, blocks, shift);
  } else {
    chunk_lanes<1, K, C>(task, scratch, groups_at(0), 0, first_block, blocks, shift);
  }
#else
  for (int64_t lane = 0; lane < task.num_strips * kStripRows; lane += kLanes) {
    chunk_lanes<1, K, C>(task, scratch, groups_at(lane), lane, first_block, blocks, task.layout->offset_shift);
  }
#endif
}

// records: the chunk's records of the first strip.
template <ScaleKind K, CodeKind C>
void run_chunk(const QuantizedTask& task, const Scratch& scratch, const uint8_t* records, int64_t first_block,
               int64_t blocks) {
  const int64_t count = blocks / task.layout->record_blocks;
  for (int strip = 0; strip < task.num_strips; ++strip) {
    unpack_records(*task.layout, records + strip * task.strip_bytes, count, scratch.strips + strip);
  }
  const auto groups_at = [&](int64_t lane) {
    return UnpackedGroups{scratch.strips[lane / kStripRows].codes + 4 * (lane % kStripRows)};
  };
  chunk_tiles<K, C>(task, scratch, groups_at, first_block, blocks);
}

// The same with the codes unpacked in registers: for so few rows that each code is used about once.
template <RecordFormat F>
void run_packed_chunk(const QuantizedTask& task, const Scratch& scratch, const uint8_t* records, int64_t first_block,
                      int64_t blocks) {
  using Format = PackedFormat<F>;
  for (int strip = 0; strip < task.num_strips; ++strip) {
    unpack_scales(*task.layout, records + strip * task.strip_bytes, blocks / Format::kRecordBlocks,
                  scratch.strips + strip);
  }
  const auto groups_at = [&](int64_t lane) {
    return PackedGroups<F>{records + lane / kStripRows * task.strip_bytes + 4 * (lane % kStripRows),
                           kLanes == 16 ? task.strip_bytes : 4 * kLanes};
  };
#if HEADRACE_ISA_LEVEL == 2
  constexpr CodeKind kCode = CodeKind::kSigned8;
#else
  constexpr CodeKind kCode = Format::kCode;
#endif
  chunk_tiles<Format::kScale, kCode>(task, scratch, groups_at, first_block, blocks);
}

using RunChunk = void (*)(const QuantizedTask&, const Scratch&, const uint8_t*, int64_t, int64_t);

RunChunk choose_packed_chunk(RecordFormat format) {
  switch (format) {
#define CASE(name) \
  case RecordFormat::name: return run_packed_chunk<RecordFormat::name>
    CASE(kQ4_0);
    CASE(kQ4_1);
    CASE(kQ5_0);
    CASE(kQ5_1);
    CASE(kQ8_0);
    CASE(kQ4_K);
    CASE(kQ5_K);
    CASE(kQ6_K);
    CASE(kIQ4_NL);
    CASE(kIQ4_XS);
    CASE(kMXFP4);
#undef CASE
    default: return nullptr;
  }
}

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

// Fetches `count` records of each strip from `record` on; past a strip's end, the start of the strips after the task's.
constexpr int64_t kAheadChunks = 2;
HEADRACE_INLINE void fetch_ahead(const QuantizedTask& task, int64_t record, int64_t count) {
  const int64_t num_records = task.blocks / task.layout->record_blocks;
  const int64_t record_bytes = task.layout->record_bytes;
  const int64_t skip = record < num_records ? 0 : task.num_strips;
  if (skip > 0) record -= num_records;
  if (record >= num_records) return;
  for (int strip = 0; strip < task.num_strips; ++strip) {
    const int64_t from = (skip + strip) * task.strip_bytes + record * record_bytes;
    const int64_t end = from + count * record_bytes;
    const int64_t last = end < task.readable_bytes ? end : task.readable_bytes;
    for (int64_t i = from; i < last; i += 64) _mm_prefetch((const char*)task.strips + i, _MM_HINT_T0);
  }
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
  return kTaskStrips * (int64_t)sizeof(UnpackedStrip) + (2 * num_rows + 1) * kTaskColumns * 4;
}

void quantized_run_task(const QuantizedTask& task) {
  const QuantizedLayout& layout = *task.layout;
  Scratch scratch;
  scratch.strips = (UnpackedStrip*)task.scratch;
  scratch.first = (float*)(task.scratch + kTaskStrips * sizeof(UnpackedStrip));
  scratch.second = scratch.first + task.num_rows * kTaskColumns;
  memset(scratch.first, 0, (size_t)(2 * task.num_rows + 1) * kTaskColumns * 4);

  const bool few = task.num_rows <= kMaxRows;
  RunChunk run = few ? choose_packed_chunk(layout.format) : nullptr;
  if (!run) run = choose_chunk(layout.scale_kind, layout.code_kind);
  // Few rows: small chunks, so that reading the weights and multiplying overlap.
  const int64_t chunk_blocks = few ? kMaxRecordBlocks : kMaxChunkBlocks;
  const int64_t chunk_records = chunk_blocks / layout.record_blocks;
  const int64_t num_records = task.blocks / layout.record_blocks;
  for (int64_t record = 0; record < num_records; record += chunk_records) {
    const int64_t left = num_records - record;
    const int64_t count = left < chunk_records ? left : chunk_records;
    const uint8_t* records = task.strips + record * layout.record_bytes;
    if (few) fetch_ahead(task, record + kAheadChunks * chunk_records, chunk_records);
    run(task, scratch, records, record * layout.record_blocks, count * layout.record_blocks);
  }
  write_outputs(task, scratch);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
