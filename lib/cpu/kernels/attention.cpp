// Attention of a tile of query rows over one split of a sequence's cache, with an online softmax.
//
// What fixes a row's arithmetic is the logical position alone: chunks of 64 positions start at multiples of 64, each
// chunk rescales the row's running sums once, and a chunk's keys and values are added in order of position. Other
// rows of the tile share the loads, never the sums. Positions a row does not see take no part in its sums (they are
// skipped, not multiplied by zero), so whatever lies in unused or foreign slots, NaN included, has no effect.
#include "cpu/kernels/functions.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

constexpr int kChunk = 64;
constexpr int kChunkTiles = kChunk / kPanel;
constexpr int kQ8Group = 32;
constexpr float kInfinity = __builtin_inff();
// The numbers of KvDType in tensor/kv_layout.h.
enum : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8 = 3 };

HEADRACE_INLINE PanelType panel_type(int32_t kv_dtype) {
  return kv_dtype == kF32 ? PanelType::kF32 : kv_dtype == kF16 ? PanelType::kF16 : PanelType::kBF16;
}

struct Scratch {
  float* keys;           // [4 tiles][head_dim][16]
  float* values;         // [64][padded_dim]
  float* scores;         // [num_rows][64]
  float* probabilities;  // [tiles of rows][64][kTileRows]
};

HEADRACE_INLINE int64_t padded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

HEADRACE_INLINE Scratch cut(float* memory, int32_t head_dim, int32_t num_rows) {
  Scratch s;
  s.keys = memory;
  s.values = s.keys + static_cast<int64_t>(kChunk) * head_dim;
  s.scores = s.values + kChunk * padded(head_dim);
  s.probabilities = s.scores + static_cast<int64_t>(num_rows) * kChunk;
  return s;
}

// The float32 keys of 16 tokens [head_dim][16].
void widen_keys(const AttentionSplit& a, const uint8_t* head, int32_t tile, float* keys) {
  const int64_t first = static_cast<int64_t>(tile) * a.head_dim * kPanel;
  const int64_t count = static_cast<int64_t>(a.head_dim) * kPanel;
  if (a.kv_dtype != kQ8) {
    const int64_t element = a.kv_dtype == kF32 ? 4 : 2;
    widen(panel_type(a.kv_dtype), head + first * element, keys, count);
    return;
  }
  const int8_t* codes = reinterpret_cast<const int8_t*>(head) + first;
  const uint8_t* scales = head + a.code_bytes + static_cast<int64_t>(tile) * a.scale_groups * kPanel * 2;
  for (int32_t group = 0; group < a.scale_groups; ++group) {
    const V16 factor = load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kPanel);
    const int32_t begin = group * kQ8Group;
    const int32_t end = begin + kQ8Group < a.head_dim ? begin + kQ8Group : a.head_dim;
    for (int32_t d = begin; d < end; ++d) store(keys + d * kPanel, mul(load_i8(codes + d * kPanel), factor));
  }
}

// The float32 values of `count` tokens from `offset` of a block on, rows padded_dim apart. Lanes past head_dim are
// never read back, but must be initialised once.
void widen_values(const AttentionSplit& a, const uint8_t* head, int32_t offset, int32_t count, float* values) {
  if (a.kv_dtype != kQ8) {
    const int64_t row_bytes = static_cast<int64_t>(a.head_dim) * (a.kv_dtype == kF32 ? 4 : 2);
    const uint8_t* row = head + offset * row_bytes;
    if (a.head_dim == a.padded_dim) {
      widen(panel_type(a.kv_dtype), row, values, static_cast<int64_t>(count) * a.head_dim);
      return;
    }
    for (int32_t j = 0; j < count; ++j) {
      widen(panel_type(a.kv_dtype), row + j * row_bytes, values + static_cast<int64_t>(j) * a.padded_dim, a.head_dim);
    }
    return;
  }
  for (int32_t j = 0; j < count; ++j) {
    const int64_t token = offset + j;
    const int8_t* codes = reinterpret_cast<const int8_t*>(head) + token * a.head_dim;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(head + a.code_bytes) + token * a.scale_groups;
    float* out = values + static_cast<int64_t>(j) * a.padded_dim;
    for (int32_t group = 0; group < a.scale_groups; ++group) {
      uint16_t lanes[kPanel] = {scales[group]};
      float factor[kPanel];
      store(factor, load_f16(lanes));
      const V16 f = set1(factor[0]);
      const int32_t begin = group * kQ8Group;
      const int32_t end = begin + kQ8Group < a.head_dim ? begin + kQ8Group : a.head_dim;
      int32_t d = begin;
      for (; d + kPanel <= end; d += kPanel) store(out + d, mul(load_i8(codes + d), f));
      if (d < end) {
        int8_t last[kPanel] = {};
        memcpy(last, codes + d, static_cast<size_t>(end - d));
        store_partial(out + d, mul(load_i8(last), f), end - d);
      }
    }
  }
}

struct Range {
  int begin, end;  // visible positions of a row within a chunk
};

HEADRACE_INLINE Range visible(const AttentionSplit& a, int32_t row, int64_t chunk) {
  int64_t begin = a.row_begin[row] > a.begin ? a.row_begin[row] : a.begin;
  int64_t end = a.row_end[row] < a.end ? a.row_end[row] : a.end;
  begin = begin > chunk ? begin - chunk : 0;
  end = end - chunk < kChunk ? end - chunk : kChunk;
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// Turns one row's 64 products into probabilities against the new maximum and rescales the row's sums.
HEADRACE_INLINE void soften(const AttentionSplit& a, int32_t row, Range range, const float* products,
                            float* probabilities) {
  V16 s[kChunkTiles];
  V16 top = set1(-kInfinity);
  const V16 factor = set1(a.scale);
  HEADRACE_UNROLL
  for (int i = 0; i < kChunkTiles; ++i) s[i] = mul(load(products + i * kPanel), factor);
  if (a.softcap > 0.0f) {
    const V16 cap = set1(a.softcap);
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) s[i] = mul(cap, tanh(div(s[i], cap)));
  }
  const bool whole = range.begin == 0 && range.end == kChunk;
  if (!whole) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) {
      const int begin = range.begin - i * kPanel, end = range.end - i * kPanel;
      s[i] = keep_lanes(s[i], begin < 0 ? 0 : begin > 16 ? 16 : begin, end < 0 ? 0 : end > 16 ? 16 : end, -kInfinity);
    }
  }
  HEADRACE_UNROLL
  for (int i = 0; i < kChunkTiles; ++i) top = max(top, s[i]);
  const float old_max = a.max[row], chunk_max = reduce_max(top);
  const float new_max = chunk_max > old_max ? chunk_max : old_max;
  const V16 base = set1(new_max);
  V16 sum[kChunkTiles];
  HEADRACE_UNROLL
  for (int i = 0; i < kChunkTiles; ++i) {
    sum[i] = exp(sub(s[i], base));
    store(probabilities + i * kPanel, sum[i]);
  }
  const float chunk_sum = reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  if (new_max == old_max) {  // the factor is 1
    a.sum[row] += chunk_sum;
    return;
  }
  float shrink[kPanel];
  const V16 factor_of_old = exp(set1(old_max - new_max));
  store(shrink, factor_of_old);
  a.sum[row] = a.sum[row] * shrink[0] + chunk_sum;
  a.max[row] = new_max;
  float* acc = a.acc + static_cast<int64_t>(row) * a.padded_dim;
  for (int32_t d = 0; d < a.padded_dim; d += kPanel) store(acc + d, mul(load(acc + d), factor_of_old));
}

}  // namespace

int64_t attention_scratch_floats(int32_t head_dim, int32_t num_rows) {
  const int64_t row_tiles = (num_rows + kTileRows - 1) / kTileRows;
  return kChunk * (head_dim + padded(head_dim)) + static_cast<int64_t>(num_rows) * kChunk +
         row_tiles * kTileRows * kChunk;
}

void attention_split(const AttentionSplit& a) {
  const Scratch scratch = cut(a.scratch, a.head_dim, a.num_rows);
  for (int32_t row = 0; row < a.num_rows; ++row) {
    a.max[row] = -kInfinity;
    a.sum[row] = 0.0f;
  }
  memset(a.acc, 0, static_cast<size_t>(a.num_rows) * static_cast<size_t>(a.padded_dim) * sizeof(float));
  if (a.head_dim != a.padded_dim) {
    memset(scratch.values, 0, static_cast<size_t>(kChunk) * static_cast<size_t>(a.padded_dim) * sizeof(float));
  }
  const int32_t padded_panels = a.padded_dim / kPanel;

  for (int64_t chunk = a.begin / kChunk * kChunk; chunk < a.end; chunk += kChunk) {
    // Only tiles that some row sees are read: the block table need not name others.
    const int64_t begin = a.begin > chunk ? a.begin : chunk;
    const int64_t end = a.end < chunk + kChunk ? a.end : chunk + kChunk;
    const int first_tile = static_cast<int>((begin - chunk) / kPanel);
    const int last_tile = static_cast<int>((end - 1 - chunk) / kPanel);
    for (int tile = first_tile; tile <= last_tile; ++tile) {
      const int64_t position = chunk + tile * kPanel;
      const uint8_t* keys = a.cache + a.block_table[position / a.block_size] * a.block_bytes;
      const int32_t offset = static_cast<int32_t>(position % a.block_size);
      widen_keys(a, keys, offset / kPanel, scratch.keys + static_cast<int64_t>(tile) * a.head_dim * kPanel);
      widen_values(a, keys + a.half_bytes, offset, kPanel,
                   scratch.values + static_cast<int64_t>(tile) * kPanel * a.padded_dim);
    }

    for (int32_t first_row = 0; first_row < a.num_rows; first_row += kTileRows) {
      const int32_t rows = a.num_rows - first_row < kTileRows ? a.num_rows - first_row : kTileRows;
      Range ranges[kTileRows];
      bool any = false;
      for (int32_t r = 0; r < rows; ++r) {
        ranges[r] = visible(a, first_row + r, chunk);
        any |= ranges[r].begin < ranges[r].end;
      }
      if (!any) continue;

      float* scores = scratch.scores + static_cast<int64_t>(first_row) * kChunk;
      memset(scores, 0, static_cast<size_t>(rows) * kChunk * sizeof(float));
      MatmulTile products;
      products.x = a.q + static_cast<int64_t>(first_row) * a.head_dim;
      products.x_stride = kTileRows;
      products.w = scratch.keys + static_cast<int64_t>(first_tile) * a.head_dim * kPanel;
      products.panel_stride = static_cast<int64_t>(a.head_dim) * kPanel;
      products.k_stride = kPanel;
      products.depth = a.head_dim;
      products.rows = rows;
      products.panels = last_tile - first_tile + 1;
      products.out = scores + first_tile * kPanel;
      products.out_stride = kChunk;
      matmul_tile(PanelType::kF32, products);

      float* columns = scratch.probabilities + static_cast<int64_t>(first_row) * kChunk;
      for (int32_t r = 0; r < rows; ++r) {
        if (ranges[r].begin >= ranges[r].end) continue;
        float row[kChunk];
        soften(a, first_row + r, ranges[r], scores + r * kChunk, row);
        for (int j = 0; j < kChunk; ++j) columns[j * kTileRows + r] = row[j];
      }

      // Neighbours that see the same positions are multiplied together, each in its own order of positions.
      for (int32_t r = 0; r < rows;) {
        int32_t next = r + 1;
        while (next < rows && ranges[next].begin == ranges[r].begin && ranges[next].end == ranges[r].end) ++next;
        if (ranges[r].begin < ranges[r].end) {
          MatmulTile sums;
          sums.x = columns + ranges[r].begin * kTileRows + r;
          sums.x_stride = kTileRows;
          sums.w = scratch.values + static_cast<int64_t>(ranges[r].begin) * a.padded_dim;
          sums.panel_stride = kPanel;
          sums.k_stride = a.padded_dim;
          sums.depth = ranges[r].end - ranges[r].begin;
          sums.rows = next - r;
          sums.panels = padded_panels;
          sums.out = a.acc + static_cast<int64_t>(first_row + r) * a.padded_dim;
          sums.out_stride = a.padded_dim;
          matmul_tile(PanelType::kF32, sums);
        }
        r = next;
      }
    }
  }
}

void attention_merge(float split_max, float split_sum, const float* split_acc, int32_t padded_dim, float* max_value,
                     float* sum, float* acc) {
  if (split_sum == 0.0f) return;  // the row sees nothing there (a visible position adds at least e^0)
  const float new_max = split_max > *max_value ? split_max : *max_value;
  const V16 old_factor = exp(set1(*max_value - new_max));
  const V16 new_factor = exp(set1(split_max - new_max));
  float lanes[2][kPanel];
  store(lanes[0], old_factor);
  store(lanes[1], new_factor);
  *sum = *sum * lanes[0][0] + split_sum * lanes[1][0];
  *max_value = new_max;
  for (int32_t d = 0; d < padded_dim; d += kPanel) {
    store(acc + d, fma(load(split_acc + d), new_factor, mul(load(acc + d), old_factor)));
  }
}

void attention_finish(const float* acc, float sum, int32_t head_dim, float* out) {
  const V16 total = set1(sum);
  int32_t d = 0;
  for (; d + kPanel <= head_dim; d += kPanel) store(out + d, div(load(acc + d), total));
  if (d < head_dim) store_partial(out + d, div(load(acc + d), total), head_dim - d);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
