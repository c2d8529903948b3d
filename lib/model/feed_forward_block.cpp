#include "model/blocks.h"

namespace headrace {

namespace {

void scale_inner(const StepContext& step, float* rows, const DenseFeedForward& spec, float factor) {
  ScaleParams params;
  params.x = rows;
  params.num_elements = step.num_rows * spec.intermediate_size;
  params.factor = factor;
  step.backend.scale(params);
}

}  // namespace

void feed_forward(const StepContext& step, const DenseFeedForward& spec, const DenseWeights& weights,
                  const float* input, const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  if (!spec.gated) {
    activated_linear(step, input, weights.up, spec.activation, spec.intermediate_size, work.gate.data());
  } else if (spec.gate_scale == 1.0f && !spec.gate_cutoff) {
    gated_linear(step, input, weights, spec.activation, 0.0f, work.gate.data());
  } else {
    const LinearOutput inner[] = {weights.gate.to(work.gate.data()), weights.up.to(work.up.data())};
    linear(step, input, step.spec.hidden_size, inner);
    if (spec.gate_scale != 1.0f) scale_inner(step, work.gate.data(), spec, spec.gate_scale);
    if (spec.gate_cutoff) {
      step.backend.cut_gates({work.gate.data(), step.num_rows, spec.intermediate_size, *spec.gate_cutoff});
    }
    GatedActivationParams activation;
    activation.gate = work.gate.data();
    activation.up = work.up.data();
    activation.num_elements = step.num_rows * spec.intermediate_size;
    activation.activation = spec.activation;
    activation.out = work.gate.data();
    step.backend.gated_activation(activation);
  }
  if (spec.inner_scale != 1.0f) scale_inner(step, work.gate.data(), spec, spec.inner_scale);

  add_branch(step, work.gate.data(), spec.intermediate_size, weights.down, post_norm, scale);
}

}  // namespace headrace
