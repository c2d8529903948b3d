#include "model/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

namespace headrace {

namespace {

void project_inputs(const StepContext& step, const GqaWeights& weights, const float* input) {
  ForwardWorkspace& work = step.work;
  LinearOutput all[4];
  size_t count = 0;
  const std::pair<const LinearWeight*, float*> weighted[] = {{&weights.q, work.q.data()},
                                                             {&weights.k, work.k.data()},
                                                             {&weights.v, work.v.data()},
                                                             {&weights.gate, work.gate_in.data()}};
  for (const auto& [weight, rows] : weighted) {
    if (weight->weight != nullptr) all[count++] = weight->to(rows);
  }
  linear(step, input, step.spec.hidden_size, std::span(all, count));
}

// The kinds of norm that the rotation's op does not do itself, in place.
void normalize_whole(const StepContext& step, float* x, const std::vector<float>& weight) {
  RmsNormParams params;
  params.x = params.out = x;
  params.weight = weight.data();
  params.num_tokens = step.num_rows;
  params.size = static_cast<int64_t>(weight.size());
  params.eps = step.spec.norm_eps;
  params.weight_offset = step.spec.norm_weight_offset;
  step.backend.rms_norm(params);
}

// RMS of each head of the values.
void normalize_values(const StepContext& step, const GqaAttention& spec, const std::vector<float>& weight) {
  RmsNormParams params;
  params.x = params.out = step.work.v.data();
  params.weight = weight.data();
  params.num_tokens = step.num_rows * spec.num_kv_heads;
  params.size = spec.head_dim;
  params.eps = step.spec.norm_eps;
  step.backend.rms_norm(params);
}

void normalize_heads(const StepContext& step, float* x, const std::vector<float>& weight, int32_t head_dim) {
  LayerNormParams params;
  params.x = params.out = x;
  params.weight = weight.data();
  params.num_tokens = step.num_rows;
  params.size = head_dim;
  params.groups = static_cast<int64_t>(weight.size()) / head_dim;
  params.eps = step.spec.norm_eps;
  step.backend.layer_norm(params);
}

void normalize_before(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights) {
  if (!spec.qk_norm) return;
  if (spec.qk_norm_kind == QkNormKind::kWhole) {
    normalize_whole(step, step.work.q.data(), weights.q_norm);
    if (spec.kv_layer < 0) normalize_whole(step, step.work.k.data(), weights.k_norm);
  } else if (spec.qk_norm_kind == QkNormKind::kHeadLayer) {
    normalize_heads(step, step.work.q.data(), weights.q_norm, spec.head_dim);
    if (spec.kv_layer < 0) normalize_heads(step, step.work.k.data(), weights.k_norm, spec.head_dim);
  }
}

// Takes, normalises and scales the values of work.v and, where they are narrower than keys, moves them apart, the last
// first, with zeros between.
void prepare_values(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights) {
  if (spec.kv_layer >= 0) return;
  const int64_t heads = step.num_rows * spec.num_kv_heads;
  float* const v = step.work.v.data();
  if (spec.values_from_keys) std::copy_n(step.work.k.data(), heads * spec.head_dim, v);
  if (spec.value_norm) normalize_values(step, spec, weights.v_norm);
  if (spec.value_scale != 1.0f) {
    ScaleParams params;
    params.x = v;
    params.num_elements = heads * spec.value_dim();
    params.factor = spec.value_scale;
    step.backend.scale(params);
  }
  if (spec.value_dim() == spec.head_dim) return;
  for (int64_t head = heads - 1; head >= 0; --head) {
    float* const to = v + head * spec.head_dim;
    std::memmove(to, v + head * spec.value_dim(), static_cast<size_t>(spec.value_dim()) * sizeof(float));
    std::fill(to + spec.value_dim(), to + spec.head_dim, 0.0f);
  }
}

// work.attention [rows, heads, head_dim] -> [rows, heads, value_dim].
void drop_padding(const StepContext& step, const GqaAttention& spec) {
  if (spec.value_dim() == spec.head_dim) return;
  float* const out = step.work.attention.data();
  for (int64_t head = 0; head < step.num_rows * spec.num_heads; ++head) {
    std::memmove(out + head * spec.value_dim(), out + head * spec.head_dim,
                 static_cast<size_t>(spec.value_dim()) * sizeof(float));
  }
}

// The factor of each row's q.
void fill_q_scale(const GqaAttention& spec, const Batch& batch, std::vector<float>& out) {
  for (size_t row = 0; row < batch.positions.size(); ++row) {
    const double periods = std::floor((static_cast<double>(batch.positions[row]) + spec.position_scale_shift) /
                                      spec.position_scale_length);
    out[row] = static_cast<float>(1.0 + static_cast<double>(spec.position_scale) * std::log1p(periods));
  }
}

void rotate_and_store(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights, const Batch& batch,
                      const KvLayout& layout, std::byte* cache) {
  RopeStoreParams params;
  params.q = step.work.q.data();
  params.k = spec.kv_layer < 0 ? step.work.k.data() : nullptr;
  params.v = step.work.v.data();
  params.num_tokens = step.num_rows;
  params.num_heads = spec.num_heads;
  if (spec.qk_norm && spec.qk_norm_kind != QkNormKind::kWhole && spec.qk_norm_kind != QkNormKind::kHeadLayer) {
    params.norm_after_rotation = spec.qk_norm_kind != QkNormKind::kHead;
    params.q_norm = weights.q_norm.data();
    params.k_norm = weights.k_norm.data();
  }
  params.norm_eps = step.spec.norm_eps;
  params.norm_weight_offset = step.spec.norm_weight_offset;
  params.positions = batch.positions.data();
  if (!batch.rope_positions.empty()) {
    params.positions = batch.rope_positions.data();
    params.num_axes = step.spec.position_axes;
    params.axes = spec.rope.axes.empty() ? nullptr : spec.rope.axes.data();
  }
  if (spec.position_scale != 0) {
    fill_q_scale(spec, batch, step.work.q_scale);
    params.q_scale = step.work.q_scale.data();
  }
  params.layout = layout;
  params.cache = cache;
  params.slots = batch.slots.data();
  rotate_rows(step, spec.rope, params, batch);
}

}  // namespace

void attend(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights, const float* input,
            const Batch& batch, const KvLayout& layout, std::byte* cache, bool with_output) {
  project_inputs(step, weights, input);
  prepare_values(step, spec, weights);
  normalize_before(step, spec, weights);
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
  if (spec.position_buckets) {
    params.position_bias = weights.position_bias->data();
    params.bias_reach = spec.position_buckets->max_distance;
  }
  params.window = spec.window;
  params.chunk = spec.chunk;
  params.logit_softcap = spec.logit_softcap;
  params.sinks = weights.sinks.empty() ? nullptr : weights.sinks.data();
  if (spec.both_ways) params.sequence_ends = step.work.sequence_ends.data();
  if (spec.spans != SpanKind::kIgnored && !batch.spans.empty()) params.spans = batch.spans.data();
  params.span_alone = spec.spans == SpanKind::kAlone;
  step.backend.paged_attention(params);
  drop_padding(step, spec);
  if (!spec.output_gate) return;
  GatedActivationParams gate;
  gate.gate = step.work.gate_in.data();
  gate.up = step.work.attention.data();
  gate.num_elements = step.num_rows * spec.num_heads * spec.value_dim();
  gate.activation = Activation::kSigmoid;
  gate.out = step.work.attention.data();
  step.backend.gated_activation(gate);
}

void project_attention(const StepContext& step, const GqaAttention& spec, const GqaWeights& weights,
                       const NormWeight& post_norm, float scale) {
  const int64_t width = int64_t{spec.num_heads} * spec.value_dim();
  add_branch(step, step.work.attention.data(), width, weights.o, post_norm, scale);
}

const float* block_input(const StepContext& step, const NormWeight& norm, const ResidualSpec& residual) {
  ForwardWorkspace& work = step.work;
  if (norm.empty()) return work.x.data();
  apply_norm(step, work.x.data(), norm, work.normed.data());
  if (residual.normed) {
    const int64_t count = step.num_rows * step.spec.hidden_size;
    copy_floats(step, work.normed.data(), count, work.x.data());
    if (residual.keep != 1.0f) step.backend.scale({work.x.data(), count, residual.keep});
  }
  return work.normed.data();
}

void apply_norm(const StepContext& step, const float* x, const NormWeight& norm, float* out) {
  if (step.spec.norm == NormKind::kLayer) {
    LayerNormParams params;
    params.x = x;
    params.weight = norm.weight.data();
    params.bias = norm.bias.empty() ? nullptr : norm.bias.data();
    params.num_tokens = step.num_rows;
    params.size = step.spec.hidden_size;
    params.eps = step.spec.norm_eps;
    params.out = out;
    step.backend.layer_norm(params);
    return;
  }
  RmsNormParams params;
  params.x = x;
  params.weight = norm.weight.data();
  params.num_tokens = step.num_rows;
  params.size = step.spec.hidden_size;
  params.eps = step.spec.norm_eps;
  params.weight_offset = step.spec.norm_weight_offset;
  params.out = out;
  step.backend.rms_norm(params);
}

void add_branch(const StepContext& step, const float* x, int64_t in_features, const LinearWeight& weight,
                const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  const bool direct = adds_directly(post_norm, scale);
  const LinearOutput outputs[] = {weight.to(direct ? work.x.data() : work.branch.data(), direct)};
  linear(step, x, in_features, outputs);
  if (!direct) finish_branch(step, post_norm, scale);
}

void finish_branch(const StepContext& step, const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  if (!post_norm.empty()) apply_norm(step, work.branch.data(), post_norm, work.branch.data());
  if (scale != 1.0f) step.backend.scale({work.branch.data(), step.num_rows * step.spec.hidden_size, scale});
  AddParams add;
  add.x = work.branch.data();
  add.out = work.x.data();
  add.num_elements = step.num_rows * step.spec.hidden_size;
  step.backend.add(add);
}

}  // namespace headrace
