// Scores of an indexer. A position's score is a lane of its own: heads are added in order, and each head's product over
// the dims in order, so that no cut of positions changes a bit.
#include "cpu/kernels/attention_tile.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

// Listed rows of a chunk, as keys in a.scratch; the row that is being turned lies behind them.
void gather_keys(const IndexSpan& a, int64_t first, int64_t count) {
  float* const row = a.scratch + static_cast<int64_t>(kChunk) * a.head_dim;
  for (int64_t j = 0; j < count; ++j) {
    widen_row(a.kv_dtype, a.rows[first + j], a.row_scales[first + j], a.head_dim, row);
    turn_into_key(row, a.head_dim, static_cast<int32_t>(j), a.scratch);
  }
}

template <int32_t kType>
void score_span(const IndexSpan& a) {
  const int64_t key_tile_bytes = static_cast<int64_t>(a.head_dim) * kPanel * kBytes<kType>;
  float products[kTileRows * kChunk];
  for (int64_t chunk = a.begin; chunk < a.end; chunk += kChunk) {
    const int64_t count = a.end - chunk < kChunk ? a.end - chunk : kChunk;
    const int tiles = static_cast<int>((count + kPanel - 1) / kPanel);
    ChunkSource keys = {};
    if (a.rows != nullptr) gather_keys(a, chunk - a.begin, count);
    for (int tile = 0; tile < tiles; ++tile) {
      if (a.rows != nullptr) {
        keys.tile[tile] = keys.ahead[tile] =
            reinterpret_cast<const uint8_t*>(a.scratch) + static_cast<int64_t>(tile) * key_tile_bytes;
        continue;
      }
      const int64_t position = chunk + tile * kPanel, offset = position % a.block_size;
      const uint8_t* block = a.cache + a.block_table[position / a.block_size] * a.block_bytes;
      keys.tile[tile] = keys.ahead[tile] = block + offset / kPanel * key_tile_bytes;
      keys.scales[tile] = block + a.code_bytes + offset * a.scale_groups * 2;
    }
    V16 sums[kChunkTiles];
    for (int tile = 0; tile < kChunkTiles; ++tile) sums[tile] = zero();
    for (int32_t first = 0; first < a.num_heads; first += kTileRows) {
      const int heads = a.num_heads - first < kTileRows ? a.num_heads - first : kTileRows;
      score_tile<kType, false>(heads, keys, 0, tiles, a.q + static_cast<int64_t>(first) * a.head_dim, a.head_dim,
                               products);
      for (int h = 0; h < heads; ++h) {
        const V16 weight = set1(a.weights[first + h]);
        for (int tile = 0; tile < tiles; ++tile) {
          const V16 product = load(products + h * kChunk + tile * kPanel);
          sums[tile] = fma(weight, select_less(product, zero(), zero(), product), sums[tile]);
        }
      }
    }
    for (int tile = 0; tile < tiles; ++tile) store(a.scores + (chunk - a.begin) + tile * kPanel, sums[tile]);
  }
}

}  // namespace

void index_scores(const IndexSpan& a) {
  if (a.rows != nullptr) return score_span<kF32>(a);
  switch (a.kv_dtype) {
    case kF32: return score_span<kF32>(a);
    case kF16: return score_span<kF16>(a);
    case kBF16: return score_span<kBF16>(a);
    default: return score_span<kQ8>(a);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
