#include <algorithm>

#include "model/blocks.h"

namespace headrace {

namespace {

// work.stream_gates = fn of the RMS norm of all streams of a row as one.
void project_gates(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights) {
  ForwardWorkspace& work = step.work;
  const int64_t width = int64_t{spec.num_streams} * step.spec.hidden_size;
  RmsNormParams norm;
  norm.x = work.streams.data();
  norm.weight = weights.unit.data();
  norm.num_tokens = step.num_rows;
  norm.size = width;
  norm.eps = step.spec.norm_eps;
  norm.out = work.predicted.data();
  step.backend.rms_norm(norm);
  const LinearOutput outputs[] = {weights.fn.to(work.stream_gates.data())};
  linear(step, work.predicted.data(), width, outputs);
}

StreamGatesParams gates(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights) {
  StreamGatesParams params;
  params.x = step.work.stream_gates.data();
  params.base = weights.base.data();
  params.scale = weights.scale.data();
  params.num_streams = spec.num_streams;
  params.iterations = spec.iterations;
  params.eps = spec.eps;
  params.num_tokens = step.num_rows;
  params.enter = step.work.stream_sums.data();
  return params;
}

// work.x = the streams summed by work.stream_sums.
void sum_streams(const StepContext& step, const HyperConnections& spec) {
  const int64_t hidden = step.spec.hidden_size;
  MixStreamsParams mix;
  mix.x = step.work.streams.data();
  mix.x_row_stride = spec.num_streams * hidden;
  mix.x_stream_stride = hidden;
  mix.num_in = spec.num_streams;
  mix.coefficients = step.work.stream_sums.data();
  mix.out = step.work.x.data();
  mix.out_row_stride = hidden;
  mix.num_out = 1;
  mix.num_tokens = step.num_rows;
  mix.size = hidden;
  step.backend.mix_streams(mix);
}

}  // namespace

void expand_streams(const StepContext& step, const HyperConnections& spec) {
  const int64_t hidden = step.spec.hidden_size;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    for (int64_t s = 0; s < spec.num_streams; ++s) {
      std::copy_n(step.work.x.data() + row * hidden, hidden,
                  step.work.streams.data() + (row * spec.num_streams + s) * hidden);
    }
  }
}

void enter_block(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights) {
  project_gates(step, spec, weights);
  StreamGatesParams params = gates(step, spec, weights);
  params.leave = step.work.modalities.data();
  params.map = step.work.coefficients.data();
  step.backend.stream_gates(params);
  sum_streams(step, spec);
}

void leave_block(const StepContext& step, const HyperConnections& spec) {
  ForwardWorkspace& work = step.work;
  const int64_t hidden = step.spec.hidden_size;
  MixStreamsParams mix;
  mix.x = work.streams.data();
  mix.x_row_stride = mix.out_row_stride = spec.num_streams * hidden;
  mix.x_stream_stride = mix.out_stream_stride = hidden;
  mix.num_in = mix.num_out = spec.num_streams;
  mix.coefficients = work.coefficients.data();
  mix.out = work.predicted.data();
  mix.num_tokens = step.num_rows;
  mix.size = hidden;
  step.backend.mix_streams(mix);
  mix.x = work.x.data();
  mix.x_row_stride = hidden;
  mix.x_stream_stride = 0;
  mix.num_in = 1;
  mix.coefficients = work.modalities.data();
  mix.accumulate = true;
  step.backend.mix_streams(mix);
  std::swap(work.streams, work.predicted);
}

void join_streams(const StepContext& step, const HyperConnections& spec, const StreamGateWeights& weights) {
  project_gates(step, spec, weights);
  step.backend.stream_gates(gates(step, spec, weights));
  sum_streams(step, spec);
}

}  // namespace headrace
