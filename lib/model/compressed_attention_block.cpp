#include <cmath>

#include "model/blocks.h"

namespace headrace {

namespace {

// Rotation of the last dims of heads [num_rows, num_heads, head_dim].
RopeStoreParams rotation(const RopeSpec& rope, int32_t head_dim, float* q, int32_t num_heads, int64_t num_rows,
                         const std::vector<int32_t>& positions) {
  RopeStoreParams params;
  params.inv_freq = rope.inv_freq.data();
  params.rotary_dim = rope.rotary_dim;
  params.rotary_begin = head_dim - rope.rotary_dim;
  params.interleaved = rope.interleaved;
  params.attention_factor = rope.attention_factor;
  params.layout.head_dim = head_dim;
  params.q = q;
  params.num_heads = num_heads;
  params.num_tokens = num_rows;
  params.positions = positions.data();
  return params;
}

// The same of rows that are stored, behind a norm.
void set_store(RopeStoreParams& params, const CompressedAttention& spec, float* k, const std::vector<float>& norm,
               const CachePart& part, const std::vector<int64_t>& slots) {
  params.k = k;
  params.k_norm = norm.data();
  params.norm_eps = spec.eps;
  params.layout = part.layout;
  params.cache = part.blocks;
  params.slots = slots.data();
}

void project_queries(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
                     const float* input) {
  ForwardWorkspace& work = step.work;
  const LinearOutput down[] = {weights.q_down.to(work.q_latent.data()), weights.k.to(work.k.data())};
  linear(step, input, step.spec.hidden_size, down);
  RmsNormParams norm;
  norm.x = norm.out = work.q_latent.data();
  norm.weight = weights.q_norm.data();
  norm.num_tokens = step.num_rows;
  norm.size = spec.q_rank;
  norm.eps = spec.eps;
  step.backend.rms_norm(norm);
  const LinearOutput up[] = {weights.q.to(work.q.data())};
  linear(step, work.q_latent.data(), spec.q_rank, up);
}

void store_positions(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
                     const Batch& batch, const CachePart& part) {
  RopeStoreParams params =
      rotation(spec.rope, spec.head_dim, step.work.q.data(), spec.num_heads, step.num_rows, batch.positions);
  params.q_norm = weights.unit.data();
  set_store(params, spec, step.work.k.data(), weights.k_norm, part, batch.slots);
  step.backend.rope_and_store_kv(params);
}

// Lists the runs that end with rows of the batch, in work.run_*; how many there are.
int64_t list_runs(const StepContext& step, int32_t run, const Batch& batch) {
  ForwardWorkspace& work = step.work;
  int32_t count = 0;
  for (size_t row = 0; row < static_cast<size_t>(step.num_rows); ++row) {
    if ((batch.positions[row] + 1) % run != 0) continue;
    work.run_entries[row] = count;
    work.run_positions[static_cast<size_t>(count)] = batch.positions[row] + 1 - run;
    work.run_slots[static_cast<size_t>(count)] = batch.slots[row];
    ++count;
  }
  return count;
}

// Stores the rows of those runs.
void compress(const StepContext& step, const CompressedAttention& spec, const CompressorWeights& weights,
              const float* input, const Batch& batch, const CachePart& part, int64_t state_offset, int64_t num_runs) {
  ForwardWorkspace& work = step.work;
  const LinearOutput outputs[] = {weights.value.to(work.run_values.data()), weights.gate.to(work.run_gates.data())};
  linear(step, input, step.spec.hidden_size, outputs);

  PoolRunsParams pool;
  pool.rows = state_rows(batch, state_offset);
  pool.value = work.run_values.data();
  pool.gate = work.run_gates.data();
  pool.bias = weights.bias.data();
  pool.positions = batch.positions.data();
  pool.run = spec.compressor->run;
  pool.overlap = spec.compressor->overlap;
  pool.channels = part.layout.head_dim;
  pool.entries = work.run_entries.data();
  pool.out = work.run_rows.data();
  step.backend.pool_runs(pool);
  if (num_runs == 0) return;

  RopeStoreParams store = rotation(spec.rope, part.layout.head_dim, nullptr, 0, num_runs, work.run_positions);
  set_store(store, spec, work.run_rows.data(), weights.norm, part, work.run_slots);
  step.backend.rope_and_store_kv(store);
}

// work.selected and work.num_selected: the runs that every row sees.
void select_runs(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
                 const float* input, const Batch& batch, const CachePart& part) {
  ForwardWorkspace& work = step.work;
  const RunIndexer& indexer = *spec.indexer;
  const LinearOutput queries[] = {weights.index_q.to(work.index_q.data())};
  linear(step, work.q_latent.data(), spec.q_rank, queries);
  const LinearOutput heads[] = {weights.index_head_weights.to(work.index_weights.data())};
  linear(step, input, step.spec.hidden_size, heads);
  ScaleParams scale;
  scale.x = work.index_weights.data();
  scale.num_elements = step.num_rows * indexer.num_heads;
  scale.factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(indexer.num_heads) * indexer.head_dim));
  step.backend.scale(scale);

  step.backend.rope_and_store_kv(
      rotation(spec.rope, indexer.head_dim, work.index_q.data(), indexer.num_heads, step.num_rows, batch.positions));

  SelectPositionsParams params;
  params.q = work.index_q.data();
  params.weights = work.index_weights.data();
  params.num_heads = indexer.num_heads;
  params.num_seqs = batch.num_seqs();
  params.query_start = batch.query_start.data();
  params.block_tables = batch.block_tables.data();
  params.positions = batch.positions.data();
  params.layout = part.layout;
  params.cache = part.blocks;
  params.top_k = indexer.top_k;
  params.selected = work.selected.data();
  params.counts = work.num_selected.data();
  step.backend.select_positions(params);
}

}  // namespace

void attend(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
            const float* input, const Batch& batch, const LayerCache& cache, bool with_output) {
  ForwardWorkspace& work = step.work;
  project_queries(step, spec, weights, input);
  store_positions(step, spec, weights, batch, cache.parts[0]);
  PagedAttentionParams params;
  if (spec.compressor) {
    const int64_t num_runs = list_runs(step, spec.compressor->run, batch);
    compress(step, spec, weights.compressor, input, batch, cache.parts[1], cache.state_offset, num_runs);
    params.runs.layout = cache.parts[1].layout;
    params.runs.cache = cache.parts[1].blocks;
    if (spec.indexer) {
      compress(step, spec, weights.index_compressor, input, batch, cache.parts[2],
               cache.state_offset + spec.compressor->state_floats(spec.head_dim), num_runs);
      if (with_output) select_runs(step, spec, weights, input, batch, cache.parts[2]);
      params.runs.selected = {work.selected.data(), work.num_selected.data(), spec.indexer->top_k};
    }
  }
  if (!with_output) return;

  params.q = work.q.data();
  params.out = work.attention.data();
  params.num_heads = spec.num_heads;
  params.num_seqs = batch.num_seqs();
  params.query_start = batch.query_start.data();
  params.block_tables = batch.block_tables.data();
  params.positions = batch.positions.data();
  params.layout = cache.layout();
  params.cache = cache.blocks();
  params.scale = spec.scale;
  params.window = spec.window;
  params.sinks = weights.sinks.data();
  step.backend.paged_attention(params);

  // Values were rotated with their keys: what is left is a function of how far they are from the row.
  RopeStoreParams back =
      rotation(spec.rope, spec.head_dim, work.attention.data(), spec.num_heads, step.num_rows, batch.positions);
  back.backwards = true;
  step.backend.rope_and_store_kv(back);
}

void project_attention(const StepContext& step, const CompressedAttention& spec, const CompressedWeights& weights,
                       const NormWeight& post_norm, float scale) {
  const int64_t width = int64_t{spec.num_heads} * spec.head_dim;
  std::vector<const PackedWeight*> matrices;
  for (const LinearWeight& group : weights.groups) matrices.push_back(group.weight.get());
  HeadLinearParams params;
  params.x = step.work.attention.data();
  params.x_row_stride = width;
  params.x_head_stride = params.in_features = width / spec.output_groups;
  params.num_tokens = step.num_rows;
  params.weights = matrices;
  params.y = step.work.q.data();
  params.y_row_stride = int64_t{spec.output_groups} * spec.output_rank;
  params.y_head_stride = spec.output_rank;
  step.backend.head_linear(params);
  add_branch(step, step.work.q.data(), params.y_row_stride, weights.o, post_norm, scale);
}

}  // namespace headrace
