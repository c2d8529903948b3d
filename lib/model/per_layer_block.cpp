#include <cstring>

#include "model/blocks.h"

namespace headrace {

void project_per_layer(const StepContext& step, const PerLayerInputs& spec, const ModelWeights& weights,
                       const Batch& batch) {
  ForwardWorkspace& work = step.work;
  const auto layers = static_cast<int64_t>(weights.layers.size());
  const int64_t width = layers * spec.size, count = step.num_rows * width;
  const LinearOutput outputs[] = {weights.per_layer_projection->to(work.per_layer_rows.data())};
  linear(step, work.x.data(), step.spec.hidden_size, outputs);
  step.backend.scale({work.per_layer_rows.data(), count, spec.projection_scale});
  RmsNormParams norm;
  norm.x = norm.out = work.per_layer_rows.data();
  norm.weight = weights.per_layer_norm.data();
  norm.num_tokens = step.num_rows * layers;
  norm.size = spec.size;
  norm.eps = step.spec.norm_eps;
  norm.weight_offset = step.spec.norm_weight_offset;
  step.backend.rms_norm(norm);

  for (size_t row = 0; row < batch.token_ids.size(); ++row) {
    work.table_rows[row] = batch.token_ids[row] < spec.vocab_size ? batch.token_ids[row] : 0;
  }
  EmbedParams table;
  table.table = weights.per_layer_table->weight.get();
  table.token_ids = work.table_rows.data();
  table.num_tokens = step.num_rows;
  table.scale = spec.table_scale;
  table.out = work.per_layer.data();
  step.backend.embed(table);
  step.backend.add({work.per_layer.data(), work.per_layer_rows.data(), count});
  step.backend.scale({work.per_layer_rows.data(), count, spec.sum_scale});

  // Each layer reads its own rows one after the other.
  for (int64_t row = 0; row < step.num_rows; ++row) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::memcpy(work.per_layer.data() + (layer * step.num_rows + row) * spec.size,
                  work.per_layer_rows.data() + (row * layers + layer) * spec.size,
                  static_cast<size_t>(spec.size) * sizeof(float));
    }
  }
}

void gate_per_layer(const StepContext& step, const PerLayerInputs& spec, const PerLayerWeights& weights, const float* x,
                    const float* inputs) {
  ForwardWorkspace& work = step.work;
  float* const gate = work.per_layer_rows.data();
  const LinearOutput gates[] = {weights.gate.to(gate)};
  linear(step, x, step.spec.hidden_size, gates);
  GatedActivationParams activation;
  activation.gate = gate;
  activation.up = inputs;
  activation.num_elements = step.num_rows * spec.size;
  activation.activation = spec.activation;
  activation.out = gate;
  step.backend.gated_activation(activation);
  const LinearOutput outputs[] = {weights.projection.to(work.branch.data())};
  linear(step, gate, spec.size, outputs);
  apply_norm(step, work.branch.data(), weights.norm, work.branch.data());
}

}  // namespace headrace
