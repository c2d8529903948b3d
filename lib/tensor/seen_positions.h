// Which cached positions a row of paged attention sees. Where the cache holds rows, which ranks it sees of the list of its
// positions and, behind them, of runs: all.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/op_params.h"

namespace headrace {

struct SeenSpan {
  int64_t begin = 0, end = 0;
  bool empty() const { return end == 0; }
};

inline SeenSpan span_of(const PagedAttentionParams& p, int32_t token) {
  if (p.spans == nullptr) return {};
  return {p.spans[2 * int64_t{token}], p.spans[2 * int64_t{token} + 1]};
}

// Whether each row has a list of its own.
inline bool is_listed(const PagedAttentionParams& p) { return !p.layout.has_keys(); }

// The first position of a row that has none selected.
inline int64_t window_begin(const PagedAttentionParams& p, int32_t token) {
  const int64_t position = p.positions[token];
  const int64_t chunk_start = p.chunk > 0 ? position / p.chunk * p.chunk : 0;
  return p.window > 0 ? std::max(chunk_start, position - p.window + 1) : chunk_start;
}

// Of a listed row: its positions, and its runs.
inline int64_t listed_positions(const PagedAttentionParams& p, int32_t token) {
  if (p.selected.positions != nullptr) return p.selected.counts[token];
  return p.positions[token] + 1 - window_begin(p, token);
}
inline int64_t listed_runs(const PagedAttentionParams& p, int32_t token) {
  if (p.runs.cache == nullptr) return 0;
  if (p.runs.selected.positions != nullptr) return p.runs.selected.counts[token];
  return p.runs.layout.rows_before(p.positions[token]);
}

inline int64_t seen_begin(const PagedAttentionParams& p, int32_t token) {
  if (is_listed(p)) return 0;
  const SeenSpan span = span_of(p, token);
  return p.span_alone && !span.empty() ? span.begin : window_begin(p, token);
}

// Behind the last.
inline int64_t seen_end(const PagedAttentionParams& p, int32_t sequence, int32_t token) {
  if (is_listed(p)) return listed_positions(p, token) + listed_runs(p, token);
  const SeenSpan span = span_of(p, token);
  if (p.span_alone && !span.empty()) return span.end;
  const int64_t position = p.positions[token];
  if (p.sequence_ends == nullptr) return std::max(position + 1, span.end);
  const int64_t end = p.sequence_ends[sequence];
  return std::max(p.window > 0 ? std::min(end, position + p.window) : end, span.end);
}

}  // namespace headrace
