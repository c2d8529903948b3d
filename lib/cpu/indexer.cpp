#include "cpu/indexer.h"

#include <algorithm>

#include "cpu/cached_row.h"

namespace headrace {
namespace {

// Scores of at most this many positions, over the rows of a group, are kept at a time.
constexpr int64_t kMostScores = int64_t{1} << 22;
constexpr int64_t kPositionsPerTask = 2048;

constexpr int64_t kKeysAtOnce = 64;  // rows that the kernel turns into keys

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

void CpuIndexer::run(const SelectPositionsParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t rows = p.num_seqs > 0 ? p.query_start[p.num_seqs] : 0;
  if (rows == 0) return;
  sequences_.resize(static_cast<size_t>(rows));
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    std::fill(sequences_.begin() + p.query_start[seq], sequences_.begin() + p.query_start[seq + 1], seq);
  }
  tops_.resize(static_cast<size_t>(pool.num_threads()));
  const int64_t longest = p.layout.rows_before(*std::max_element(p.positions, p.positions + rows));
  const int64_t stride = rounded_up(std::max<int64_t>(longest, 1), kPositionsPerTask);
  if (!p.layout.has_keys()) {
    listed_.resize(static_cast<size_t>(pool.num_threads()));
    for (Listed& listed : listed_) {
      listed.rows.resize(kPositionsPerTask);
      listed.scales.resize(kPositionsPerTask);
      listed.widened.reserve_floats((kKeysAtOnce + 1) * p.layout.head_dim);
    }
  }
  const int64_t group = std::clamp(kMostScores / stride, int64_t{1}, rows);
  scores_.reserve_floats(group * stride);
  for (int64_t first = 0; first < rows; first += group) {
    run_rows(p, first, std::min(group, rows - first), stride, pool, kernels);
  }
}

// Where the rows of a span's numbers lie.
void CpuIndexer::list_rows(const SelectPositionsParams& p, Listed& listed, IndexSpan& span) {
  for (int64_t number = span.begin; number < span.end; ++number) {
    const CachedRow row = cached_row(p.layout, p.cache, span.block_table, number);
    listed.rows[static_cast<size_t>(number - span.begin)] = row.codes;
    listed.scales[static_cast<size_t>(number - span.begin)] = row.scales;
  }
  span.rows = listed.rows.data();
  span.row_scales = listed.scales.data();
  span.scratch = listed.widened.as<float>();
}

void CpuIndexer::run_rows(const SelectPositionsParams& p, int64_t first, int64_t count, int64_t stride,
                          ThreadPool& pool, const KernelTable& kernels) {
  const int64_t head_dim = p.layout.head_dim, tile_rows = kernels.float_tile_rows;
  const int64_t query_floats = rounded_up(p.num_heads, tile_rows) * head_dim;
  queries_.reserve_floats(count * query_floats);
  // A row that sees everything needs no scores.
  const auto candidates = [&](int64_t row) { return p.layout.rows_before(p.positions[row]); };
  const auto chooses = [&](int64_t row) { return candidates(row) > p.top_k; };
  pool.run(count, [&](int64_t index, int) {
    if (!chooses(first + index)) return;
    float* to = queries_.as<float>() + index * query_floats;
    const float* from = p.q + (first + index) * p.num_heads * head_dim;
    for (int64_t h = 0; h < p.num_heads; ++h) {
      float* at = to + h / tile_rows * tile_rows * head_dim + h % tile_rows;
      for (int64_t d = 0; d < head_dim; ++d) at[d * tile_rows] = from[h * head_dim + d];
    }
  });
  const int64_t parts = stride / kPositionsPerTask;
  pool.run(count * parts, [&](int64_t task, int thread) {
    const int64_t index = task / parts, row = first + index, begin = task % parts * kPositionsPerTask;
    if (!chooses(row) || begin >= candidates(row)) return;
    IndexSpan span;
    span.kv_dtype = static_cast<int32_t>(p.layout.dtype);
    span.head_dim = p.layout.head_dim;
    span.block_size = p.layout.block_size;
    span.code_bytes = static_cast<int64_t>(p.layout.code_bytes());
    span.scale_groups = p.layout.scale_groups();
    span.cache = reinterpret_cast<const uint8_t*>(p.cache);
    span.block_bytes = static_cast<int64_t>(p.layout.block_bytes());
    span.block_table = p.block_tables[sequences_[static_cast<size_t>(row)]];
    span.begin = begin;
    span.end = std::min(begin + kPositionsPerTask, candidates(row));
    span.num_heads = p.num_heads;
    span.q = queries_.as<float>() + index * query_floats;
    span.weights = p.weights + row * p.num_heads;
    span.scores = scores_.as<float>() + index * stride + begin;
    span.rows = span.row_scales = nullptr;
    span.scratch = nullptr;
    if (!p.layout.has_keys()) list_rows(p, listed_[static_cast<size_t>(thread)], span);
    kernels.index_scores(span);
  });
  pool.run(count, [&](int64_t index, int thread) {
    const int64_t row = first + index, seen = candidates(row), chosen = std::min(p.top_k, seen);
    p.counts[row] = static_cast<int32_t>(chosen);
    tops_[static_cast<size_t>(thread)].pick({scores_.as<float>() + index * stride, static_cast<size_t>(seen)}, chosen,
                                            p.selected + row * p.top_k);
  });
}

}  // namespace headrace
