#include "model/blocks.h"

#include <algorithm>

namespace headrace {

namespace {

// y += s B (A x) of `rows`, of their adapter where it has something for an output. Other rows are not touched, and a row's sum
// is the same whatever rows stand beside it.
void add_adapter(const StepContext& step, const AdapterRows& rows, const float* x, int64_t in_features,
                 std::span<const LinearOutput> outputs) {
  for (const LinearOutput& output : outputs) {
    const AdapterPair* pair = rows.adapter->find(output.weight);
    if (pair == nullptr) continue;
    const int64_t rank = pair->down->rows();
    const LinearOutput down[] = {{pair->down.get(), nullptr, step.work.adapted.data(), rank, false}};
    step.backend.linear({x + rows.begin * in_features, rows.count, in_features, down});
    const LinearOutput up[] = {
        {pair->up.get(), nullptr, output.y + rows.begin * output.y_stride, output.y_stride, true}};
    step.backend.linear({step.work.adapted.data(), rows.count, rank, up});
  }
}

bool adapts(const StepContext& step, const LinearWeight& weight) {
  return std::any_of(step.adapters.begin(), step.adapters.end(),
                     [&](const AdapterRows& rows) { return rows.adapter->find(weight.weight.get()) != nullptr; });
}

}  // namespace

void linear(const StepContext& step, const float* x, int64_t in_features, std::span<const LinearOutput> outputs) {
  LinearParams params;
  params.x = x;
  params.num_tokens = step.num_rows;
  params.in_features = in_features;
  params.outputs = outputs;
  step.backend.linear(params);
  for (const AdapterRows& rows : step.adapters) add_adapter(step, rows, x, in_features, outputs);
}

void linear(const StepContext& step, const Adapter& adapter, const float* x, int64_t num_rows, int64_t in_features,
            std::span<const LinearOutput> outputs) {
  step.backend.linear({x, num_rows, in_features, outputs});
  add_adapter(step, {&adapter, 0, num_rows}, x, in_features, outputs);
}

void gated_linear(const StepContext& step, const float* x, const DenseWeights& weights, Activation activation,
                  float limit, float* out) {
  if (adapts(step, weights.gate) || adapts(step, weights.up)) {
    // The products apart, which gives the same bits, so that something can be added between.
    const LinearOutput inner[] = {weights.gate.to(out), weights.up.to(step.work.up.data())};
    linear(step, x, step.spec.hidden_size, inner);
    GatedActivationParams params;
    params.gate = params.out = out;
    params.up = step.work.up.data();
    params.num_elements = step.num_rows * weights.gate.weight->rows();
    params.activation = activation;
    params.limit = limit;
    return step.backend.gated_activation(params);
  }
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
