#include <cmath>

#include "model/blocks.h"

namespace headrace {

namespace {

void project_indexer(const StepContext& step, const Indexer& spec, const SparseLatentAttention& attention,
                     const IndexerWeights& weights, const float* input) {
  ForwardWorkspace& work = step.work;
  const LinearOutput queries[] = {weights.q.to(work.index_q.data())};
  linear(step, work.q_latent.data(), attention.latent.q_rank, queries);
  const LinearOutput outputs[] = {weights.k.to(work.index_k.data()),
                                  weights.head_weights.to(work.index_weights.data())};
  linear(step, input, step.spec.hidden_size, outputs);

  LayerNormParams norm;
  norm.x = norm.out = work.index_k.data();
  norm.weight = weights.k_norm.data();
  norm.bias = weights.k_norm_bias.data();
  norm.num_tokens = step.num_rows;
  norm.size = spec.head_dim;
  norm.eps = spec.norm_eps;
  step.backend.layer_norm(norm);

  ScaleParams scale;
  scale.x = work.index_weights.data();
  scale.num_elements = step.num_rows * spec.num_heads;
  scale.factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.num_heads) * spec.head_dim));
  step.backend.scale(scale);
}

// work.selected and work.num_selected of every row.
void select(const StepContext& step, const Indexer& spec, int32_t top_k, const Batch& batch, const CachePart& part) {
  SelectPositionsParams params;
  params.q = step.work.index_q.data();
  params.weights = step.work.index_weights.data();
  params.num_heads = spec.num_heads;
  params.num_seqs = batch.num_seqs();
  params.query_start = batch.query_start.data();
  params.block_tables = batch.block_tables.data();
  params.positions = batch.positions.data();
  params.layout = part.layout;
  params.cache = part.blocks;
  params.top_k = top_k;
  params.selected = step.work.selected.data();
  params.counts = step.work.num_selected.data();
  step.backend.select_positions(params);
}

}  // namespace

void attend(const StepContext& step, const SparseLatentAttention& spec, const SparseLatentWeights& weights,
            const float* input, const Batch& batch, const LayerCache& cache, bool with_output) {
  project_latent(step, spec.latent, weights.latent, input, batch, cache);
  if (spec.indexer) {
    project_indexer(step, *spec.indexer, spec, weights.indexer, input);
    rotate_and_store(step, spec.indexer->rope, spec.indexer->num_heads, step.work.index_q.data(),
                     step.work.index_k.data(), nullptr, batch, cache.parts[1]);
  }
  if (!with_output) return;
  if (spec.indexer) select(step, *spec.indexer, spec.top_k, batch, cache.parts[1]);
  attend_latent(step, spec.latent, batch, cache,
                {step.work.selected.data(), step.work.num_selected.data(), spec.top_k});
}

}  // namespace headrace
