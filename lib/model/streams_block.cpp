#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/blocks.h"

namespace headrace {

namespace {

// Below it a projected embedding's mean square counts as this much.
constexpr float kMagnitudeFloor = 1e-5f;

// work.modalities [num_rows, num_streams] of the rows of work.x.
void route_streams(const StepContext& step, const AltUp& spec, const AltUpWeights& weights) {
  ForwardWorkspace& work = step.work;
  apply_norm(step, work.x.data(), weights.router_norm, work.normed.data());
  const LinearOutput outputs[] = {weights.router.to(work.modalities.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, outputs);
  GatedActivationParams tanh;
  tanh.gate = tanh.out = work.modalities.data();
  tanh.num_elements = step.num_rows * spec.num_streams;
  tanh.activation = Activation::kTanh;
  step.backend.gated_activation(tanh);
}

float* stream(const StepContext& step, int64_t index, int64_t stream_rows) {
  return step.work.streams.data() + index * stream_rows * step.spec.hidden_size;
}

// Rows of `rows` brought by a matrix to the other side, as large as those of the first stream.
void project_stream(const StepContext& step, const LinearWeight& weight, const float* rows, int64_t stream_rows,
                    float* out) {
  const LinearOutput outputs[] = {weight.to(out)};
  linear(step, rows, step.spec.hidden_size, outputs);
  step.backend.match_magnitude(
      {out, stream(step, 0, stream_rows), step.num_rows, step.spec.hidden_size, kMagnitudeFloor});
}

}  // namespace

void expand_streams(const StepContext& step, const AltUp& spec, const ModelWeights& weights, int64_t stream_rows) {
  const float* const x = step.work.x.data();
  std::copy_n(x, step.num_rows * step.spec.hidden_size, stream(step, 0, stream_rows));
  for (int32_t i = 1; i < spec.num_streams; ++i) {
    project_stream(step, weights.stream_projections[static_cast<size_t>(i) - 1], x, stream_rows,
                   stream(step, i, stream_rows));
  }
}

void predict_streams(const StepContext& step, const AltUp& spec, const AltUpWeights& weights, int64_t stream_rows) {
  ForwardWorkspace& work = step.work;
  const int64_t hidden = step.spec.hidden_size, count = spec.num_streams;
  std::copy_n(stream(step, spec.active, stream_rows), step.num_rows * hidden, work.x.data());
  route_streams(step, spec, weights);
  const LinearOutput outputs[] = {weights.prediction.to(work.coefficients.data())};
  linear(step, work.modalities.data(), count, outputs);
  // The map changes streams rather than makes them.
  for (int64_t row = 0; row < step.num_rows; ++row) {
    for (int64_t i = 0; i < count; ++i) work.coefficients[static_cast<size_t>((row * count + i) * count + i)] += 1.0f;
  }
  MixStreamsParams mix;
  mix.x = work.streams.data();
  mix.x_row_stride = mix.out_row_stride = hidden;
  mix.x_stream_stride = mix.out_stream_stride = stream_rows * hidden;
  mix.num_in = mix.num_out = spec.num_streams;
  mix.coefficients = work.coefficients.data();
  mix.out = work.predicted.data();
  mix.num_tokens = step.num_rows;
  mix.size = hidden;
  step.backend.mix_streams(mix);
  std::swap(work.streams, work.predicted);
  std::copy_n(stream(step, spec.active, stream_rows), step.num_rows * hidden, work.x.data());
}

void correct_streams(const StepContext& step, const AltUp& spec, const LayerWeights& weights, const float* inputs,
                     int64_t stream_rows) {
  ForwardWorkspace& work = step.work;
  const int64_t hidden = step.spec.hidden_size, count = step.num_rows * hidden;
  route_streams(step, spec, weights.altup);
  const LinearOutput outputs[] = {weights.altup.correction.to(work.coefficients.data())};
  linear(step, work.modalities.data(), spec.num_streams, outputs);
  for (int64_t i = 0; i < step.num_rows * spec.num_streams; ++i) work.coefficients[static_cast<size_t>(i)] += 1.0f;

  // work.x becomes what the blocks changed: x - prediction.
  float* const active = stream(step, spec.active, stream_rows);
  step.backend.scale({work.x.data(), count, -1.0f});
  step.backend.add({active, work.x.data(), count});
  step.backend.scale({work.x.data(), count, -1.0f});
  MixStreamsParams mix;
  mix.x = work.x.data();
  mix.x_row_stride = mix.out_row_stride = hidden;
  mix.out_stream_stride = stream_rows * hidden;
  mix.num_in = 1;
  mix.num_out = spec.num_streams;
  mix.coefficients = work.coefficients.data();
  mix.out = work.streams.data();
  mix.num_tokens = step.num_rows;
  mix.size = hidden;
  mix.accumulate = true;
  step.backend.mix_streams(mix);

  std::copy_n(active, count, work.x.data());
  if (inputs == nullptr) return;
  std::copy_n(active, count, work.normed.data());
  if (!weights.altup.output_scale.empty()) {
    step.backend.scale({work.normed.data(), count, 1.0f, weights.altup.output_scale.data(), hidden});
  }
  gate_per_layer(step, *step.spec.per_layer_inputs, weights.per_layer, work.normed.data(), inputs);
  for (int32_t i = 1; i < spec.num_streams; ++i) {
    step.backend.add({work.branch.data(), stream(step, i, stream_rows), count});
  }
}

void join_streams(const StepContext& step, const AltUp& spec, const ModelWeights& weights, int64_t stream_rows) {
  ForwardWorkspace& work = step.work;
  const int64_t count = step.num_rows * step.spec.hidden_size;
  std::copy_n(stream(step, 0, stream_rows), count, work.x.data());
  for (int32_t i = 1; i < spec.num_streams; ++i) {
    project_stream(step, weights.stream_unprojections[static_cast<size_t>(i) - 1], stream(step, i, stream_rows),
                   stream_rows, work.branch.data());
    step.backend.add({work.branch.data(), work.x.data(), count});
  }
  step.backend.scale({work.x.data(), count, 1.0f / static_cast<float>(spec.num_streams)});
}

void add_laurel(const StepContext& step, const LaurelWeights& weights, int64_t rank) {
  ForwardWorkspace& work = step.work;
  const int64_t hidden = step.spec.hidden_size, count = step.num_rows * hidden;
  const LinearOutput left[] = {weights.left.to(work.laurel.data())};
  linear(step, work.normed.data(), hidden, left);
  const LinearOutput right[] = {weights.right.to(work.branch.data())};
  linear(step, work.laurel.data(), rank, right);
  apply_norm(step, work.branch.data(), weights.norm, work.branch.data());
  step.backend.add({work.normed.data(), work.branch.data(), count});
  step.backend.add({work.branch.data(), work.x.data(), count});
  step.backend.scale({work.x.data(), count, static_cast<float>(std::sqrt(0.5))});
}

}  // namespace headrace
