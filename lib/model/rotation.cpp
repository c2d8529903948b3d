// Rotation of a step's rows by the frequencies of their sequences.
#include <algorithm>
#include <span>

#include "model/blocks.h"
#include "model/rope_length.h"

namespace headrace {

namespace {

// Rows [begin, end) of what params describe.
RopeStoreParams rows_of(RopeStoreParams params, int64_t begin, int64_t end) {
  if (params.q != nullptr) params.q += begin * params.num_heads * params.layout.head_dim;
  const int64_t kv_offset = begin * params.layout.num_kv_heads * params.layout.head_dim;
  if (params.k != nullptr) params.k += kv_offset;
  if (params.v != nullptr) params.v += kv_offset;
  params.positions += begin * params.num_axes;
  if (params.q_scale != nullptr) params.q_scale += begin;
  params.slots += begin;
  params.num_tokens = end - begin;
  return params;
}

}  // namespace

void rotate_rows(const StepContext& step, const RopeSpec& rope, RopeStoreParams params, const Batch& batch) {
  params.rotary_dim = rope.rotary_dim;
  params.interleaved = rope.interleaved;
  params.attention_factor = rope.attention_factor;
  const auto rotate = [&](int64_t length, int64_t begin, int64_t end) {
    RopeStoreParams rows = rows_of(params, begin, end);
    const std::span<const float> frequencies = rope_frequencies(rope, length, step.work.inv_freq);
    rows.inv_freq = frequencies.empty() ? nullptr : frequencies.data();
    step.backend.rope_and_store_kv(rows);
  };
  const std::vector<int64_t>& lengths = batch.rope_lengths;
  if (lengths.empty() || (rope.long_inv_freq.empty() && rope.dynamic_factor == 0)) return rotate(0, 0, step.num_rows);
  for (size_t seq = 0; seq < lengths.size();) {
    size_t end = seq + 1;
    while (end < lengths.size() && lengths[end] == lengths[seq]) ++end;
    if (batch.query_start[seq] < batch.query_start[end]) {
      rotate(lengths[seq], batch.query_start[seq], batch.query_start[end]);
    }
    seq = end;
  }
}

}  // namespace headrace
