// Attention of a tile of query rows over one split of a sequence's cache, with an online softmax.
//
// What fixes a row's arithmetic is the logical position alone: chunks of 64 positions start at multiples of 64, each
// chunk rescales the row's running sums once, and a chunk's keys and values are added in order of position. Other
// rows of the tile share the loads, never the sums. Positions a row does not see take no part in its sums (they are
// skipped, not multiplied by zero), so whatever lies in unused or foreign slots, NaN included, has no effect.
#include "cpu/kernels/attention_tile.h"
#include "cpu/kernels/functions.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

constexpr float kInfinity = __builtin_inff();

HEADRACE_INLINE int64_t padded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

struct Scratch {
  float* keys;    // [4 tiles][head_dim][16]
  float* values;  // [64][padded_dim]
  float* scores;  // [kTileRows][64]
  float* lanes;   // [num_rows][16] parts of each row's sum
};

HEADRACE_INLINE Scratch cut(float* memory, int32_t head_dim) {
  Scratch s;
  s.keys = memory;
  s.values = s.keys + static_cast<int64_t>(kChunk) * head_dim;
  s.scores = s.values + kChunk * padded(head_dim);
  s.lanes = s.scores + kTileRows * kChunk;
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
    widen_codes(head + token * a.head_dim, head + a.code_bytes + token * a.scale_groups * 2, a.head_dim,
                values + static_cast<int64_t>(j) * a.padded_dim);
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

// Turns one row's 64 products into scores, -inf where it does not see, and returns the greatest. bias: of the chunk, or
// null.
HEADRACE_INLINE float scale_and_mask(const AttentionSplit& a, Range range, const float* bias, float* products) {
  V16 s[kChunkTiles];
  const V16 factor = set1(a.scale);
  HEADRACE_UNROLL
  for (int i = 0; i < kChunkTiles; ++i) s[i] = mul(load(products + i * kPanel), factor);
  if (bias != nullptr) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) s[i] = add(s[i], load(bias + i * kPanel));
  }
  if (a.softcap > 0.0f) {
    const V16 cap = set1(a.softcap);
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) s[i] = mul(cap, tanh(div(s[i], cap)));
  }
  if (range.begin != 0 || range.end != kChunk) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) {
      const int begin = range.begin - i * kPanel, end = range.end - i * kPanel;
      s[i] = keep_lanes(s[i], begin < 0 ? 0 : begin > 16 ? 16 : begin, end < 0 ? 0 : end > 16 ? 16 : end, -kInfinity);
    }
  }
  HEADRACE_UNROLL
  for (int i = 0; i < kChunkTiles; ++i) store(products + i * kPanel, s[i]);
  return reduce_max(max(max(s[0], s[1]), max(s[2], s[3])));
}

// Turns a tile's products into probabilities against each row's new maximum. shrink: what the sums before this chunk
// are to be multiplied by.
HEADRACE_INLINE void soften(const AttentionSplit& a, int64_t chunk, int32_t first_row, int rows, const Range* ranges,
                            float* scores, float* lanes, float* shrink) {
  float old_max[kPanel] = {}, new_max[kPanel] = {};
  for (int r = 0; r < rows; ++r) {
    if (ranges[r].begin >= ranges[r].end) continue;
    const float* bias = a.row_bias == nullptr ? nullptr : a.row_bias[first_row + r] + chunk;
    const float top = scale_and_mask(a, ranges[r], bias, scores + r * kChunk);
    old_max[r] = a.max[first_row + r];
    new_max[r] = top > old_max[r] ? top : old_max[r];
    a.max[first_row + r] = new_max[r];
  }
  const V16 before = load(old_max), now = load(new_max);
  // Exactly 1 for an unchanged maximum, -inf included.
  store(shrink, select_less(before, now, exp(sub(before, now)), set1(1.0f)));
  for (int r = 0; r < rows; ++r) {
    if (ranges[r].begin >= ranges[r].end) continue;
    const V16 base = set1(new_max[r]);
    float* row = scores + r * kChunk;
    V16 e[kChunkTiles];
    HEADRACE_UNROLL
    for (int i = 0; i < kChunkTiles; ++i) {
      e[i] = exp(sub(load(row + i * kPanel), base));
      store(row + i * kPanel, e[i]);
    }
    float* parts = lanes + static_cast<int64_t>(first_row + r) * kPanel;
    store(parts, fma(load(parts), set1(shrink[r]), add(add(e[0], e[1]), add(e[2], e[3]))));
  }
}

HEADRACE_INLINE const uint8_t* tile_bytes(const AttentionSplit& a, int64_t position, int32_t* offset) {
  *offset = static_cast<int32_t>(position % a.block_size);
  return a.cache + a.block_table[position / a.block_size] * a.block_bytes;
}

// One chunk of positions, for all rows. kType is that of `keys` and `values`.
template <int32_t kType, bool kAhead>
HEADRACE_INLINE void attend_chunk(const AttentionSplit& a, const Scratch& scratch, int64_t chunk, int first_tile,
                                  int last_tile, const ChunkSource& keys, const ChunkSource& values,
                                  int64_t row_bytes) {
  const int32_t panels = a.padded_dim / kPanel;
  const int64_t scale_row_bytes = a.scale_groups * 2;
  const float* q = a.q;
  for (int32_t first_row = 0; first_row < a.num_rows; first_row += a.tile_rows, q += kTileRows * a.head_dim) {
    const int rows = a.num_rows - first_row < a.tile_rows ? a.num_rows - first_row : a.tile_rows;
    Range ranges[kTileRows];
    bool any = false;
    for (int r = 0; r < rows; ++r) {
      ranges[r] = visible(a, first_row + r, chunk);
      any |= ranges[r].begin < ranges[r].end;
    }
    if (!any) continue;
    score_tile<kType, kAhead>(rows, keys, first_tile, last_tile + 1, q, a.head_dim, scratch.scores);
    float shrink[kPanel];
    soften(a, chunk, first_row, rows, ranges, scratch.scores, scratch.lanes, shrink);

    // Neighbours that see the same positions are multiplied together, each in its own order of positions.
    for (int r = 0; r < rows;) {
      int next = r + 1;
      while (next < rows && ranges[next].begin == ranges[r].begin && ranges[next].end == ranges[r].end) ++next;
      if (ranges[r].begin < ranges[r].end) {
        value_tile<kType, kAhead>(next - r, panels, values, scratch.scores + r * kChunk, ranges[r].begin, ranges[r].end,
                                  row_bytes, scale_row_bytes, shrink + r,
                                  a.acc + static_cast<int64_t>(first_row + r) * a.padded_dim, a.padded_dim);
      }
      r = next;
    }
  }
}

// Few rows: keys and values are widened in registers.
template <int32_t kType>
void attend_cached(const AttentionSplit& a, const Scratch& scratch) {
  const int64_t key_tile_bytes = static_cast<int64_t>(a.head_dim) * kPanel * kBytes<kType>;
  const int64_t row_bytes = static_cast<int64_t>(a.head_dim) * kBytes<kType>;
  const auto locate = [&](int64_t position, int tile, ChunkSource& keys, ChunkSource& values) {
    int32_t offset;
    const uint8_t* key_bytes = tile_bytes(a, position, &offset);
    const uint8_t* value_bytes = key_bytes + a.half_bytes;
    keys.tile[tile] = key_bytes + offset / kPanel * key_tile_bytes;
    keys.scales[tile] = key_bytes + a.code_bytes + static_cast<int64_t>(offset) * a.scale_groups * 2;
    values.tile[tile] = value_bytes + offset * row_bytes;
    values.scales[tile] = value_bytes + a.code_bytes + static_cast<int64_t>(offset) * a.scale_groups * 2;
  };
  ChunkSource keys = {}, values = {}, next_keys = {}, next_values = {};
  if (a.starts) {
    const int64_t chunk_end = a.begin / kChunk * kChunk + kChunk;
    for (int64_t position = a.begin / kPanel * kPanel; position < chunk_end && position < a.end; position += kPanel) {
      locate(position, 0, keys, values);
      for (int64_t at = 0; at < key_tile_bytes; at += 64) {
        prefetch(keys.tile[0] + at);
        prefetch(values.tile[0] + at);
      }
    }
  }
  for (int64_t chunk = a.begin / kChunk * kChunk; chunk < a.end; chunk += kChunk) {
    const int64_t begin = a.begin > chunk ? a.begin : chunk;
    const int64_t end = a.end < chunk + kChunk ? a.end : chunk + kChunk;
    const int first_tile = static_cast<int>((begin - chunk) / kPanel);
    const int last_tile = static_cast<int>((end - 1 - chunk) / kPanel);
    for (int tile = first_tile; tile <= last_tile; ++tile) {
      locate(chunk + tile * kPanel, tile, keys, values);
      const int64_t later = chunk + kChunk + tile * kPanel;
      if (later < a.ahead_end) {
        locate(later, tile, next_keys, next_values);
        keys.ahead[tile] = next_keys.tile[tile];
        values.ahead[tile] = next_values.tile[tile];
        if constexpr (kType == kQ8) {
          for (int32_t at = 0; at < a.scale_groups * kPanel * 2; at += 64) {
            prefetch(next_keys.scales[tile] + at);
            prefetch(next_values.scales[tile] + at);
          }
        }
      } else {
        keys.ahead[tile] = keys.tile[tile];
        values.ahead[tile] = values.tile[tile];
      }
    }
    attend_chunk<kType, true>(a, scratch, chunk, first_tile, last_tile, keys, values, row_bytes);
  }
}

// A listed row widened to value j of a chunk, and to its key.
void widen_listed(const AttentionSplit& a, int64_t index, int32_t j, const Scratch& scratch) {
  float* row = scratch.values + static_cast<int64_t>(j) * a.padded_dim;
  widen_row(a.kv_dtype, a.rows[index], a.row_scales[index], a.head_dim, row);
  turn_into_key(row, a.head_dim, j, scratch.keys);
}

// Many rows: a chunk's keys and values are widened once for all of them. Listed rows always are.
void attend_widened(const AttentionSplit& a, const Scratch& scratch) {
  if (a.head_dim != a.padded_dim) {
    memset(scratch.values, 0, static_cast<size_t>(kChunk) * static_cast<size_t>(a.padded_dim) * sizeof(float));
  }
  ChunkSource keys = {}, values = {};
  for (int tile = 0; tile < kChunkTiles; ++tile) {
    keys.tile[tile] = reinterpret_cast<const uint8_t*>(scratch.keys + static_cast<int64_t>(tile) * a.head_dim * kPanel);
    values.tile[tile] =
        reinterpret_cast<const uint8_t*>(scratch.values + static_cast<int64_t>(tile) * kPanel * a.padded_dim);
  }
  for (int64_t chunk = a.begin / kChunk * kChunk; chunk < a.end; chunk += kChunk) {
    // Only tiles that some row sees are read: the block table need not name others.
    const int64_t begin = a.begin > chunk ? a.begin : chunk;
    const int64_t end = a.end < chunk + kChunk ? a.end : chunk + kChunk;
    const int first_tile = static_cast<int>((begin - chunk) / kPanel);
    const int last_tile = static_cast<int>((end - 1 - chunk) / kPanel);
    for (int64_t rank = begin; a.rows != nullptr && rank < end; ++rank) {
      widen_listed(a, rank - a.begin, static_cast<int32_t>(rank - chunk), scratch);
    }
    for (int tile = first_tile; a.rows == nullptr && tile <= last_tile; ++tile) {
      int32_t offset;
      const uint8_t* bytes = tile_bytes(a, chunk + tile * kPanel, &offset);
      widen_keys(a, bytes, offset / kPanel, scratch.keys + static_cast<int64_t>(tile) * a.head_dim * kPanel);
      widen_values(a, bytes + a.half_bytes, offset, kPanel,
                   scratch.values + static_cast<int64_t>(tile) * kPanel * a.padded_dim);
    }
    attend_chunk<kF32, false>(a, scratch, chunk, first_tile, last_tile, keys, values,
                              static_cast<int64_t>(a.padded_dim) * 4);
  }
}

}  // namespace

int64_t attention_scratch_floats(int32_t head_dim, int32_t num_rows) {
  return kChunk * (head_dim + padded(head_dim)) + kTileRows * kChunk + static_cast<int64_t>(num_rows) * kPanel;
}

void attention_split(const AttentionSplit& a) {
  const Scratch scratch = cut(a.scratch, a.head_dim);
  for (int32_t row = 0; row < a.num_rows; ++row) a.max[row] = -kInfinity;
  memset(scratch.lanes, 0, static_cast<size_t>(a.num_rows) * kPanel * sizeof(float));
  memset(a.acc, 0, static_cast<size_t>(a.num_rows) * static_cast<size_t>(a.padded_dim) * sizeof(float));
  if (a.num_rows <= kTileRows && a.head_dim == a.padded_dim && a.rows == nullptr) {
    switch (a.kv_dtype) {
      case kF32: attend_cached<kF32>(a, scratch); break;
      case kF16: attend_cached<kF16>(a, scratch); break;
      case kBF16: attend_cached<kBF16>(a, scratch); break;
      default: attend_cached<kQ8>(a, scratch); break;
    }
  } else {
    attend_widened(a, scratch);
  }
  for (int32_t row = 0; row < a.num_rows; ++row) {
    a.sum[row] = reduce_add(load(scratch.lanes + static_cast<int64_t>(row) * kPanel));
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
