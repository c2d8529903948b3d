#include <algorithm>

#include "model/blocks.h"

namespace headrace {

namespace {

// Rows that the router sees -> work.experts and work.expert_weights.
void choose(const StepContext& step, const RouterSpec& spec, const MoeWeights& weights, const float* input) {
  ForwardWorkspace& work = step.work;
  const LinearOutput logits[] = {weights.router.to(work.router.data())};
  linear(step, input, step.spec.hidden_size, logits);
  RouteParams params;
  params.logits = work.router.data();
  params.correction = weights.correction.empty() ? nullptr : weights.correction.data();
  params.expert_scales = weights.expert_scales.empty() ? nullptr : weights.expert_scales.data();
  params.num_tokens = step.num_rows;
  params.num_experts = spec.num_experts;
  params.top_k = spec.top_k;
  params.num_groups = spec.num_groups;
  params.top_groups = spec.top_groups;
  params.group_score = spec.group_score;
  params.score = spec.score;
  params.normalize = spec.normalize;
  params.sum_floor = spec.sum_floor;
  params.sum_added = spec.sum_added;
  params.scale = spec.scale;
  params.experts = work.experts.data();
  params.weights = work.expert_weights.data();
  for (int64_t row = 0; row < step.num_rows && spec.by_token; ++row) {
    const auto token = static_cast<int64_t>(work.token_ids[static_cast<size_t>(row)]);
    std::copy_n(weights.by_token.begin() + token * spec.top_k, spec.top_k, work.given.begin() + row * spec.top_k);
  }
  if (spec.by_token) params.given = work.given.data();
  step.backend.route(params);
}

// out += shared(input)
void add_shared(const StepContext& step, const MixtureOfExperts& spec, const MoeWeights& weights, const float* input,
                float* out) {
  ForwardWorkspace& work = step.work;
  if (spec.gated) {
    gated_linear(step, input, weights.shared, spec.activation, spec.activation_limit, work.gate.data());
  } else {
    activated_linear(step, input, weights.shared.up, spec.activation, spec.shared_intermediate_size, work.gate.data());
  }
  if (spec.shared_gate) {
    // On this side of the last product, which is linear, so that the sum needs no buffer of its own.
    const LinearOutput logits[] = {weights.shared_gate.to(work.router.data())};
    linear(step, input, step.spec.hidden_size, logits);
    GateRowsParams gate;
    gate.x = work.gate.data();
    gate.gate = work.router.data();
    gate.num_tokens = step.num_rows;
    gate.size = spec.shared_intermediate_size;
    step.backend.gate_rows(gate);
  }
  const LinearOutput outputs[] = {weights.shared.down.to(out, true)};
  linear(step, work.gate.data(), spec.shared_intermediate_size, outputs);
}

// out = or += the experts of rows [begin, end), without the shared feed-forward.
void visit_rows(const StepContext& step, int64_t begin, int64_t end, const MixtureOfExperts& spec,
                const MoeWeights& weights, const float* input, bool accumulate, float* out) {
  const int64_t hidden = step.spec.hidden_size, visit = begin * spec.router.top_k;
  ExpertsParams params;
  params.x = input + begin * hidden;
  params.num_tokens = end - begin;
  params.hidden_size = hidden;
  params.intermediate_size = spec.intermediate_size;
  params.all_experts = weights.table;
  params.experts = step.work.experts.data() + visit;
  params.weights = step.work.expert_weights.data() + visit;
  params.top_k = spec.router.top_k;
  params.activation = spec.activation;
  params.activation_limit = spec.activation_limit;
  params.weight_inputs = spec.weight_inputs;
  params.accumulate = accumulate;
  params.out = out + begin * hidden;
  step.backend.experts(params);
}

// Likewise of all rows, those with adapters of experts apart.
void visit(const StepContext& step, const MixtureOfExperts& spec, const MoeWeights& weights, const float* input,
           bool accumulate, float* out) {
  int64_t next = 0;
  for (const AdapterRows& rows : step.adapters) {
    if (!rows.adapter->adapts_experts(weights)) continue;
    if (rows.begin > next) visit_rows(step, next, rows.begin, spec, weights, input, accumulate, out);
    visit_adapted(step, rows, spec, weights, input, accumulate, out);
    next = rows.begin + rows.count;
  }
  if (next < step.num_rows) visit_rows(step, next, step.num_rows, spec, weights, input, accumulate, out);
}

}  // namespace

void feed_forward(const StepContext& step, const MixtureOfExperts& spec, const MoeWeights& weights, const float* input,
                  const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  choose(step, spec.router, weights, input);

  const bool direct = adds_directly(post_norm, scale);
  float* const out = direct ? work.x.data() : work.branch.data();
  visit(step, spec, weights, input, direct, out);
  if (spec.shared_intermediate_size > 0) add_shared(step, spec, weights, input, out);
  if (!direct) finish_branch(step, post_norm, scale);
}

void feed_forward(const StepContext& step, const DenseBesideExperts& spec, const DenseBesideExpertsWeights& weights,
                  const float* input, const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  float* const dense_out = work.branch.data();
  gated_linear(step, input, weights.dense, spec.dense.activation, 0.0f, work.gate.data());
  const LinearOutput down[] = {weights.dense.down.to(dense_out)};
  linear(step, work.gate.data(), spec.dense.intermediate_size, down);
  apply_norm(step, dense_out, weights.dense_post_norm, dense_out);

  float* const second = work.second.data();
  apply_norm(step, work.x.data(), weights.router_norm, second);
  choose(step, spec.experts.router, weights.experts, second);
  apply_norm(step, work.x.data(), weights.experts_norm, work.normed.data());
  visit(step, spec.experts, weights.experts, work.normed.data(), false, second);
  apply_norm(step, second, weights.experts_post_norm, second);
  step.backend.add({second, dense_out, step.num_rows * step.spec.hidden_size});
  finish_branch(step, post_norm, scale);
}

}  // namespace headrace
