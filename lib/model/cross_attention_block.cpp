#include <algorithm>

#include "model/blocks.h"
#include "model/encoder_memory.h"

namespace headrace {

MemoryRows memory_rows(const Batch& batch, const std::vector<int32_t>* rows) {
  MemoryRows out;
  for (const int32_t start : batch.query_start) {
    const auto place = [&] { return std::lower_bound(rows->begin(), rows->end(), start) - rows->begin(); };
    out.query_start.push_back(rows == nullptr ? start : static_cast<int32_t>(place()));
  }
  // Every row sees the whole memory: its place tells the op only which rows are neighbours.
  for (int32_t row = 0; row < out.query_start.back(); ++row) out.positions.push_back(row);
  out.memories = batch.memories;
  for (const EncoderMemory* memory : batch.memories) {
    out.ends.push_back(memory->num_rows);
    out.block_tables.push_back(memory->rows.block_ids().data());
  }
  return out;
}

void cross_attend(const StepContext& step, const CrossAttention& spec, const CrossWeights& weights, int32_t part) {
  ForwardWorkspace& work = step.work;
  const MemoryRows& rows = work.memory;
  const LinearOutput queries[] = {weights.q.to(work.q.data())};
  linear(step, block_input(step, weights.norm, {}), step.spec.hidden_size, queries);
  std::vector<const std::byte*> caches;
  for (const EncoderMemory* memory : rows.memories) caches.push_back(memory->cache->layer_data(part));
  PagedAttentionParams params;
  params.q = work.q.data();
  params.out = work.attention.data();
  params.num_heads = spec.num_heads;
  params.num_seqs = static_cast<int32_t>(rows.memories.size());
  params.query_start = rows.query_start.data();
  params.block_tables = rows.block_tables.data();
  params.positions = rows.positions.data();
  params.layout = rows.memories[0]->cache->config().layers[static_cast<size_t>(part)];
  params.sequence_caches = caches.data();
  params.scale = spec.scale;
  params.sequence_ends = rows.ends.data();
  step.backend.paged_attention(params);
  add_branch(step, work.attention.data(), int64_t{spec.num_heads} * spec.head_dim, weights.o, NormWeight(), 1.0f);
}

}  // namespace headrace
