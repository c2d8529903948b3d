// Which cached positions a row of paged attention sees; of a row with a list of them, which ranks in it: all.
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

inline int64_t seen_begin(const PagedAttentionParams& p, int32_t token) {
  if (p.selected.positions != nullptr) return 0;
  const SeenSpan span = span_of(p, token);
  if (p.span_alone && !span.empty()) return span.begin;
  const int64_t position = p.positions[token];
  const int64_t chunk_start = p.chunk > 0 ? position / p.chunk * p.chunk : 0;
  return p.window > 0 ? std::max(chunk_start, position - p.window + 1) : chunk_start;
}

// Behind the last.
inline int64_t seen_end(const PagedAttentionParams& p, int32_t sequence, int32_t token) {
  if (p.selected.positions != nullptr) return p.selected.counts[token];
  const SeenSpan span = span_of(p, token);
  if (p.span_alone && !span.empty()) return span.end;
  const int64_t position = p.positions[token];
  if (p.sequence_ends == nullptr) return std::max(position + 1, span.end);
  const int64_t end = p.sequence_ends[sequence];
  return std::max(p.window > 0 ? std::min(end, position + p.window) : end, span.end);
}

}  // namespace headrace
