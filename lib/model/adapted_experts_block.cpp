// Experts of rows whose adapter adds to their products: each product is an op of its own, so that something can be added
// behind it.
#include <algorithm>
#include <numeric>
#include <vector>

#include "model/blocks.h"

namespace headrace {

namespace {

// Rows of one expert, and its products' scratch.
struct Visits {
  float *x, *gate, *up;  // [visits, hidden_size], [visits, intermediate_size]
  int64_t count;
};

// visits.x = the expert's output of visits.x.
void apply_expert(const StepContext& step, const Adapter& adapter, const MixtureOfExperts& spec,
                  const DenseWeights& expert, const Visits& visits) {
  const int64_t hidden = step.spec.hidden_size, inner = spec.intermediate_size;
  const bool gated = expert.gate.weight != nullptr;
  LinearOutput both[2] = {expert.up.to(gated ? visits.up : visits.gate), {}};
  if (gated) both[1] = expert.gate.to(visits.gate);
  linear(step, adapter, visits.x, visits.count, hidden, std::span(both).first(gated ? 2 : 1));
  GatedActivationParams activation;
  activation.gate = activation.out = visits.gate;
  activation.up = gated ? visits.up : nullptr;
  activation.num_elements = visits.count * inner;
  activation.activation = spec.activation;
  activation.limit = spec.activation_limit;
  step.backend.gated_activation(activation);
  const LinearOutput down[] = {expert.down.to(visits.x)};
  linear(step, adapter, visits.gate, visits.count, inner, down);
}

}  // namespace

void visit_adapted(const StepContext& step, const AdapterRows& rows, const MixtureOfExperts& spec,
                   const MoeWeights& weights, const float* input, bool accumulate, float* out) {
  ForwardWorkspace& work = step.work;
  const int64_t hidden = step.spec.hidden_size, inner = spec.intermediate_size, top_k = spec.router.top_k;
  const int32_t* const chosen = work.experts.data() + rows.begin * top_k;
  const float* const factors = work.expert_weights.data() + rows.begin * top_k;
  const auto scale = [&](float* row, int64_t visit) {
    ScaleParams params;
    params.x = row;
    params.factor = factors[visit];
    params.num_elements = hidden;
    step.backend.scale(params);
  };
  float* const done = work.visits.data();  // [rows, top_k, hidden_size]
  Visits visits;
  visits.x = done + rows.count * top_k * hidden;
  visits.gate = visits.x + rows.count * hidden;
  visits.up = visits.gate + rows.count * inner;
  // Visits of one expert together, in the order of rows.
  std::vector<int64_t> order(static_cast<size_t>(rows.count * top_k));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t visit) { return chosen[visit]; });
  for (auto first = order.begin(); first != order.end();) {
    const int32_t expert = chosen[*first];
    const auto last = std::find_if(first, order.end(), [&](int64_t visit) { return chosen[visit] != expert; });
    visits.count = last - first;
    for (int64_t i = 0; i < visits.count; ++i) {
      float* const row = visits.x + i * hidden;
      std::copy_n(input + (rows.begin + first[i] / top_k) * hidden, hidden, row);
      if (spec.weight_inputs) scale(row, first[i]);
    }
    apply_expert(step, *rows.adapter, spec, weights.experts[static_cast<size_t>(expert)], visits);
    for (int64_t i = 0; i < visits.count; ++i) {
      float* const row = visits.x + i * hidden;
      if (!spec.weight_inputs) scale(row, first[i]);
      std::copy_n(row, hidden, done + first[i] * hidden);
    }
    first = last;
  }
  for (int64_t row = 0; row < rows.count; ++row) {
    float* const sum = done + row * top_k * hidden;
    for (int64_t k = 1; k < top_k; ++k) step.backend.add({sum + k * hidden, sum, hidden});
    float* const to = out + (rows.begin + row) * hidden;
    if (accumulate) {
      step.backend.add({sum, to, hidden});
    } else {
      std::copy_n(sum, hidden, to);
    }
  }
}

}  // namespace headrace
