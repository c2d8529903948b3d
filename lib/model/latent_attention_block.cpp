#include <cstring>

#include "model/blocks.h"

namespace headrace {

namespace {

void normalize(const StepContext& step, float* x, const std::vector<float>& weight, float eps) {
  RmsNormParams params;
  params.x = params.out = x;
  params.weight = weight.data();
  params.num_tokens = step.num_rows;
  params.size = static_cast<int64_t>(weight.size());
  params.eps = eps;
  step.backend.rms_norm(params);
}

// Copies `count` floats of each of `rows` rows.
void copy_rows(const float* from, int64_t from_stride, int64_t rows, int64_t count, float* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, static_cast<size_t>(count) * sizeof(float));
  }
}

std::vector<const PackedWeight*> pointers(const std::vector<LinearWeight>& heads) {
  std::vector<const PackedWeight*> out;
  for (const LinearWeight& head : heads) out.push_back(head.weight.get());
  return out;
}

// work.q [rows, heads, nope_dim + rope_dim] of the queries as the projections give them.
void project_queries(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                     const float* input) {
  ForwardWorkspace& work = step.work;
  if (spec.q_rank == 0) {
    const LinearOutput outputs[] = {weights.q.to(work.q.data())};
    linear(step, input, step.spec.hidden_size, outputs);
    return;
  }
  const LinearOutput down[] = {weights.q_down.to(work.q_latent.data())};
  linear(step, input, step.spec.hidden_size, down);
  normalize(step, work.q_latent.data(), weights.q_norm, spec.latent_norm_eps);
  const LinearOutput up[] = {weights.q.to(work.q.data())};
  linear(step, work.q_latent.data(), spec.q_rank, up);
}

// Rows of work.k: [rotated part | latent], which serve as keys and as values.
void project_latents(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                     const float* input) {
  ForwardWorkspace& work = step.work;
  LinearOutput rope = weights.k_rope.to(work.k.data());
  rope.y_stride = spec.key_dim();
  const LinearOutput outputs[] = {weights.latent.to(work.v.data()), rope};
  linear(step, input, step.spec.hidden_size, outputs);
  normalize(step, work.v.data(), weights.latent_norm, spec.latent_norm_eps);
  copy_rows(work.v.data(), spec.rank, step.num_rows, spec.rank, work.k.data() + spec.rope_dim, spec.key_dim());
}

// work.latent_q [rows, heads, key_dim]: the queries in the space of the cached keys.
void absorb_queries(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights) {
  ForwardWorkspace& work = step.work;
  const int64_t heads = spec.num_heads, head_dim = spec.nope_dim + spec.rope_dim;
  copy_rows(work.q.data() + spec.nope_dim, head_dim, step.num_rows * heads, spec.rope_dim, work.latent_q.data(),
            spec.key_dim());
  const std::vector<const PackedWeight*> matrices = pointers(weights.k_up);
  HeadLinearParams params;
  params.x = work.q.data();
  params.x_row_stride = heads * head_dim;
  params.x_head_stride = head_dim;
  params.num_tokens = step.num_rows;
  params.in_features = spec.nope_dim;
  params.weights = matrices;
  params.y = work.latent_q.data() + spec.rope_dim;
  params.y_row_stride = heads * spec.key_dim();
  params.y_head_stride = spec.key_dim();
  step.backend.head_linear(params);
}

}  // namespace

void rotate_and_store(const StepContext& step, const RopeSpec& rope, int32_t num_heads, float* q, float* k,
                      const float* v, const Batch& batch, const CachePart& part) {
  RopeStoreParams params;
  params.q = q;
  params.k = k;
  params.v = v;
  params.num_tokens = step.num_rows;
  params.num_heads = num_heads;
  params.positions = batch.positions.data();
  params.layout = part.layout;
  params.cache = part.blocks;
  params.slots = batch.slots.data();
  rotate_rows(step, rope, params, batch);
}

void project_latent(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                    const float* input, const Batch& batch, const LayerCache& cache) {
  project_queries(step, spec, weights, input);
  project_latents(step, spec, weights, input);
  absorb_queries(step, spec, weights);
  ForwardWorkspace& work = step.work;
  rotate_and_store(step, spec.rope, spec.num_heads, work.latent_q.data(), work.k.data(), work.k.data(), batch,
                   cache.parts[0]);
}

void attend(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights, const float* input,
            const Batch& batch, const LayerCache& cache, bool with_output) {
  project_latent(step, spec, weights, input, batch, cache);
  if (with_output) attend_latent(step, spec, batch, cache, {});
}

void attend_latent(const StepContext& step, const LatentAttention& spec, const Batch& batch, const LayerCache& cache,
                   const SelectedPositions& selected) {
  PagedAttentionParams params;
  params.q = step.work.latent_q.data();
  params.out = step.work.attention.data();
  params.num_heads = spec.num_heads;
  params.num_seqs = batch.num_seqs();
  params.query_start = batch.query_start.data();
  params.block_tables = batch.block_tables.data();
  params.positions = batch.positions.data();
  params.layout = cache.layout();
  params.cache = cache.blocks();
  params.scale = spec.scale;
  params.selected = selected;
  step.backend.paged_attention(params);
}

void project_attention(const StepContext& step, const LatentAttention& spec, const LatentWeights& weights,
                       const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  const std::vector<const PackedWeight*> matrices = pointers(weights.v_up);
  HeadLinearParams params;
  params.x = work.attention.data() + spec.rope_dim;
  params.x_row_stride = int64_t{spec.num_heads} * spec.key_dim();
  params.x_head_stride = spec.key_dim();
  params.num_tokens = step.num_rows;
  params.in_features = spec.rank;
  params.weights = matrices;
  params.y = work.q.data();
  params.y_row_stride = int64_t{spec.num_heads} * spec.v_dim;
  params.y_head_stride = spec.v_dim;
  step.backend.head_linear(params);
  add_branch(step, work.q.data(), params.y_row_stride, weights.o, post_norm, scale);
}

}  // namespace headrace
