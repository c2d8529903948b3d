#include "model/blocks.h"

namespace headrace {

namespace {

void project_inputs(const StepContext& step, const GqaWeights& weights) {
  ForwardWorkspace& work = step.work;
  const LinearOutput outputs[] = {weights.q.to(work.q.data()), weights.k.to(work.k.data()),
                                  weights.v.to(work.v.data())};
  LinearParams params;
  params.x = work.normed.data();
  params.num_tokens = step.num_rows;
  params.in_features = step.spec.hidden_size;
  params.outputs = outputs;
  step.backend.linear(params);
}

void rotate_and_store(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights, const Batch& batch,
                      const KvLayout& layout, std::byte* cache) {
  RopeStoreParams params;
  params.q = step.work.q.data();
  params.k = step.work.k.data();
  params.v = step.work.v.data();
  params.num_tokens = step.num_rows;
  params.num_heads = spec.num_heads;
  if (spec.qk_norm) {
    params.q_norm = weights.q_norm.data();
    params.k_norm = weights.k_norm.data();
  }
  params.norm_eps = step.spec.norm_eps;
  params.norm_weight_offset = step.spec.norm_weight_offset;
  params.positions = batch.positions.data();
  params.inv_freq = spec.rope.inv_freq.empty() ? nullptr : spec.rope.inv_freq.data();
  params.rotary_dim = spec.rope.rotary_dim;
  params.interleaved = spec.rope.interleaved;
  params.attention_factor = spec.rope.attention_factor;
  params.layout = layout;
  params.cache = cache;
  params.slots = batch.slots.data();
  step.backend.rope_and_store_kv(params);
}

}  // namespace

void attend(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
            const std::vector<float>& norm, const Batch& batch, const KvLayout& layout, std::byte* cache,
            bool with_output) {
  apply_norm(step, step.work.x.data(), norm, step.work.normed.data());
  project_inputs(step, weights);
  rotate_and_store(step, spec, weights, batch, layout, cache);
  if (!with_output) return;

  PagedAttentionParams params;
  params.q = step.work.q.data();
  params.out = step.work.attention.data();
  params.num_heads = spec.num_heads;
  params.num_seqs = batch.num_seqs();
  params.query_start = batch.query_start.data();
  params.block_tables = batch.block_tables.data();
  params.positions = batch.positions.data();
  params.layout = layout;
  params.cache = cache;
  params.scale = spec.scale;
  params.window = spec.window;
  params.logit_softcap = spec.logit_softcap;
  step.backend.paged_attention(params);
}

void project_attention(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
                       const std::vector<float>& post_norm) {
  const int64_t width = int64_t{spec.num_heads} * spec.head_dim;
  add_branch(step, step.work.attention.data(), width, weights.o, post_norm);
}

void apply_norm(const StepContext& step, const float* x, const std::vector<float>& weight, float* out) {
  RmsNormParams params;
  params.x = x;
  params.weight = weight.data();
  params.num_tokens = step.num_rows;
  params.size = step.spec.hidden_size;
  params.eps = step.spec.norm_eps;
  params.weight_offset = step.spec.norm_weight_offset;
  params.out = out;
  step.backend.rms_norm(params);
}

void add_branch(const StepContext& step, const float* x, int64_t in_features, const LinearWeight& weight,
                const std::vector<float>& post_norm) {
  ForwardWorkspace& work = step.work;
  const bool direct = post_norm.empty();
  const LinearOutput outputs[] = {weight.to(direct ? work.x.data() : work.branch.data(), direct)};
  LinearParams params;
  params.x = x;
  params.num_tokens = step.num_rows;
  params.in_features = in_features;
  params.outputs = outputs;
  step.backend.linear(params);
  if (direct) return;
  apply_norm(step, work.branch.data(), post_norm, work.branch.data());
  AddParams add;
  add.x = work.branch.data();
  add.out = work.x.data();
  add.num_elements = step.num_rows * step.spec.hidden_size;
  step.backend.add(add);
}

}  // namespace headrace
