#include "model/blocks.h"

namespace headrace {

namespace {

void choose(const StepContext& step, const RouterSpec& spec, const MoeWeights& weights, const float* input) {
  ForwardWorkspace& work = step.work;
  const LinearOutput logits[] = {weights.router.to(work.router.data())};
  linear(step, input, step.spec.hidden_size, logits);
  RouteParams params;
  params.logits = work.router.data();
  params.correction = weights.correction.empty() ? nullptr : weights.correction.data();
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

}  // namespace

void feed_forward(const StepContext& step, const MixtureOfExperts& spec, const MoeWeights& weights, const float* input,
                  const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  choose(step, spec.router, weights, input);

  const bool direct = adds_directly(post_norm, scale);
  float* const out = direct ? work.x.data() : work.branch.data();
  ExpertsParams params;
  params.x = input;
  params.num_tokens = step.num_rows;
  params.hidden_size = step.spec.hidden_size;
  params.intermediate_size = spec.intermediate_size;
  params.all_experts = weights.table;
  params.experts = work.experts.data();
  params.weights = work.expert_weights.data();
  params.top_k = spec.router.top_k;
  params.activation = spec.activation;
  params.activation_limit = spec.activation_limit;
  params.weight_inputs = spec.weight_inputs;
  params.accumulate = direct;
  params.out = out;
  step.backend.experts(params);
  if (spec.shared_intermediate_size > 0) add_shared(step, spec, weights, input, out);
  if (!direct) finish_branch(step, post_norm, scale);
}

}  // namespace headrace
