#include <span>

#include "model/blocks.h"

namespace headrace {

namespace {

void scale_inner(const StepContext& step, std::vector<float>& rows, const DenseFeedForward& spec, float factor) {
  ScaleParams params;
  params.x = rows.data();
  params.num_elements = step.num_rows * spec.intermediate_size;
  params.factor = factor;
  step.backend.scale(params);
}

}  // namespace

void feed_forward(const StepContext& step, const DenseFeedForward& spec, const DenseWeights& weights,
                  const float* input, const NormWeight& post_norm, float scale) {
  ForwardWorkspace& work = step.work;
  const LinearOutput gated[] = {spec.gated ? weights.gate.to(work.gate.data()) : LinearOutput(),
                                weights.up.to(work.up.data())};
  LinearParams params;
  params.x = input;
  params.num_tokens = step.num_rows;
  params.in_features = step.spec.hidden_size;
  params.outputs = std::span(gated).subspan(spec.gated ? 0 : 1);
  step.backend.linear(params);

  if (spec.gate_scale != 1.0f) scale_inner(step, work.gate, spec, spec.gate_scale);
  GatedActivationParams activation;
  activation.gate = spec.gated ? work.gate.data() : work.up.data();
  activation.up = spec.gated ? work.up.data() : nullptr;
  activation.num_elements = step.num_rows * spec.intermediate_size;
  activation.activation = spec.activation;
  activation.out = work.gate.data();
  step.backend.gated_activation(activation);
  if (spec.inner_scale != 1.0f) scale_inner(step, work.gate, spec, spec.inner_scale);

  add_branch(step, work.gate.data(), spec.intermediate_size, weights.down, post_norm, scale);
}

}  // namespace headrace
