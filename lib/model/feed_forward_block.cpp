#include "model/blocks.h"

namespace headrace {

void feed_forward(const StepContext& step, const DenseFeedForward& spec, const DenseWeights& weights,
                  const std::vector<float>& norm, const std::vector<float>& post_norm) {
  ForwardWorkspace& work = step.work;
  apply_norm(step, work.x.data(), norm, work.normed.data());

  const LinearOutput outputs[] = {weights.gate.to(work.gate.data()), weights.up.to(work.up.data())};
  LinearParams params;
  params.x = work.normed.data();
  params.num_tokens = step.num_rows;
  params.in_features = step.spec.hidden_size;
  params.outputs = outputs;
  step.backend.linear(params);

  GatedActivationParams activation;
  activation.gate = work.gate.data();
  activation.up = work.up.data();
  activation.num_elements = step.num_rows * spec.intermediate_size;
  activation.activation = spec.activation;
  activation.out = work.gate.data();
  step.backend.gated_activation(activation);

  add_branch(step, work.gate.data(), spec.intermediate_size, weights.down, post_norm);
}

}  // namespace headrace
