#include "model/blocks.h"

namespace headrace {

void linear(const StepContext& step, const float* x, int64_t in_features, std::span<const LinearOutput> outputs) {
  LinearParams params;
  params.x = x;
  params.num_tokens = step.num_rows;
  params.in_features = in_features;
  params.outputs = outputs;
  step.backend.linear(params);
}

void gated_linear(const StepContext& step, const float* x, const DenseWeights& weights, Activation activation,
                  float limit, float* out) {
  const LinearOutput gate = weights.gate.to(nullptr), up = weights.up.to(nullptr);
  GatedLinearParams params;
  params.x = x;
  params.num_tokens = step.num_rows;
  params.in_features = step.spec.hidden_size;
  params.gate = gate.weight;
  params.gate_bias = gate.bias;
  params.up = up.weight;
  params.up_bias = up.bias;
  params.activation = activation;
  params.limit = limit;
  params.out = out;
  step.backend.gated_linear(params);
}

void activated_linear(const StepContext& step, const float* x, const LinearWeight& weight, Activation activation,
                      int64_t size, float* out) {
  const LinearOutput outputs[] = {weight.to(out)};
  linear(step, x, step.spec.hidden_size, outputs);
  GatedActivationParams params;
  params.gate = params.out = out;
  params.num_elements = step.num_rows * size;
  params.activation = activation;
  step.backend.gated_activation(params);
}

}  // namespace headrace
