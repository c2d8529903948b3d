// Recurrent layers as ops. Each fills work.mixed, from which project_attention goes on.
#include <cmath>

#include "model/blocks.h"
#include "model/mixer.h"

namespace headrace {

namespace {

constexpr float kUnitEps = 1e-6f;  // of the L2 norm of queries and keys

// Columns of a wider buffer.
LinearOutput to(const LinearWeight& weight, float* y, int64_t stride) {
  LinearOutput output = weight.to(y);
  output.y_stride = stride;
  return output;
}

// in [rows, channels] -> silu(conv(in)) in work.conv, likewise.
void convolve(const StepContext& step, const ConvWeights& weights, const Batch& batch, int64_t offset, int64_t channels,
              int32_t kernel) {
  CausalConvParams params;
  params.rows = state_rows(batch, offset);
  params.x = step.work.mixer_in.data();
  params.stride = params.out_stride = params.channels = channels;
  params.weight = weights.weight.data();
  params.bias = weights.bias.empty() ? nullptr : weights.bias.data();
  params.silu = true;
  params.kernel = kernel;
  params.out = step.work.conv.data();
  step.backend.causal_conv(params);
}

void scale(const StepContext& step, float* x, int64_t width, float factor) {
  if (factor == 1.0f) return;
  ScaleParams params;
  params.x = x;
  params.num_elements = step.num_rows * width;
  params.factor = factor;
  step.backend.scale(params);
}

void activate(const StepContext& step, Activation activation, const float* gate, const float* up, int64_t width,
              float* out) {
  GatedActivationParams params;
  params.gate = gate;
  params.up = up;
  params.num_elements = step.num_rows * width;
  params.activation = activation;
  params.out = out;
  step.backend.gated_activation(params);
}

// Heads of queries and keys, side by side at the front of rows of work.conv, to length 1.
void normalize_keys(const StepContext& step, const std::vector<float>& unit, int64_t heads, int64_t stride) {
  GroupNormParams params;
  params.x = params.out = step.work.conv.data();
  params.out = step.work.conv.data();
  params.x_stride = params.out_stride = stride;
  params.weight = unit.data();
  params.num_tokens = step.num_rows;
  params.groups = heads;
  params.size = static_cast<int64_t>(unit.size());
  params.eps = kUnitEps / static_cast<float>(unit.size());
  step.backend.group_norm(params);
}

// work.mixed = norm of its heads, times the activated gate.
void norm_and_gate(const StepContext& step, const std::vector<float>& norm, float eps, int64_t groups, int64_t size,
                   Activation activation, bool gate_first) {
  GroupNormParams params;
  params.x = step.work.mixed.data();
  params.out = step.work.mixed.data();
  params.x_stride = params.out_stride = params.gate_stride = groups * size;
  params.weight = norm.data();
  params.group_weights = static_cast<int64_t>(norm.size()) != size;
  params.gate = step.work.gate_in.data();
  params.gate_first = gate_first;
  params.activation = activation;
  params.num_tokens = step.num_rows;
  params.groups = groups;
  params.size = size;
  params.eps = eps;
  step.backend.group_norm(params);
}

// step and decay from the raw steps in `raw` (which may be either's place).
void decay_gates(const StepContext& step, const float* raw, const std::vector<float>& bias,
                 const std::vector<float>& rate, float low, float high, float* steps) {
  DecayGatesParams params;
  params.raw = raw;
  params.width = params.raw_stride = static_cast<int64_t>(rate.size());
  params.bias = bias.data();
  params.rate = rate.data();
  params.low = low;
  params.high = high;
  params.num_tokens = step.num_rows;
  params.decay = step.work.decay.data();
  params.step = steps;
  step.backend.decay_gates(params);
}

}  // namespace

StateRows state_rows(const Batch& batch, int64_t offset) {
  StateRows rows;
  rows.num_seqs = batch.num_seqs();
  rows.query_start = batch.query_start.data();
  rows.states = batch.states.data();
  rows.offset = offset;
  rows.num_snapshots = static_cast<int32_t>(batch.snapshots.size());
  rows.snapshot_rows = batch.snapshot_rows.data();
  rows.snapshots = batch.snapshots.data();
  return rows;
}

void mix(const StepContext& step, const ShortConv& spec, const ShortConvWeights& weights, const Batch& batch,
         int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t width = spec.channels, stride = 3 * width;
  float* const in = work.mixer_in.data();
  const LinearOutput outputs[] = {to(weights.b, in, stride), to(weights.c, in + width, stride),
                                  to(weights.x, in + 2 * width, stride)};
  linear(step, work.normed.data(), step.spec.hidden_size, outputs);
  CausalConvParams params;
  params.rows = state_rows(batch, offset);
  params.x = in + 2 * width;
  params.gate_in = in;
  params.gate_out = in + width;
  params.stride = stride;
  params.weight = weights.conv.weight.data();
  params.bias = weights.conv.bias.empty() ? nullptr : weights.conv.bias.data();
  params.channels = width;
  params.kernel = spec.kernel;
  params.out = work.mixed.data();
  params.out_stride = width;
  step.backend.causal_conv(params);
}

void mix(const StepContext& step, const Mamba& spec, const MambaWeights& weights, const Batch& batch, int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t width = spec.channels, states = spec.state_size;
  const LinearOutput inputs[] = {weights.x.to(work.mixer_in.data()), weights.z.to(work.gate_in.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, inputs);
  convolve(step, weights.conv, batch, offset, width, spec.kernel);
  float* const bc = work.decay.data();
  const LinearOutput parameters[] = {weights.step_in.to(work.step.data()), to(weights.b, bc, 2 * states),
                                     to(weights.c, bc + states, 2 * states)};
  linear(step, work.conv.data(), width, parameters);
  const LinearOutput steps[] = {weights.step.to(work.mixer_in.data())};
  linear(step, work.step.data(), spec.step_rank, steps);

  SelectiveScanParams params;
  params.rows = state_rows(batch, offset + mixer_sizes(spec).conv_state);
  params.x = work.conv.data();
  params.step = work.mixer_in.data();
  params.gate = work.gate_in.data();
  params.x_stride = params.step_stride = params.gate_stride = params.out_stride = width;
  params.b = bc;
  params.c = bc + states;
  params.bc_stride = 2 * states;
  params.rate = weights.rate.data();
  params.skip = weights.skip.data();
  params.channels = width;
  params.state_size = states;
  params.out = work.mixed.data();
  step.backend.selective_scan(params);
}

void mix(const StepContext& step, const Mamba2& spec, const Mamba2Weights& weights, const Batch& batch,
         int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t inner = spec.inner(), states = spec.group_states(), channels = spec.conv_channels();
  const LinearOutput inputs[] = {weights.z.to(work.gate_in.data()), weights.xbc.to(work.mixer_in.data()),
                                 weights.step.to(work.step.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, inputs);
  scale(step, work.gate_in.data(), inner, spec.scales[0]);
  scale(step, work.step.data(), spec.num_heads, spec.scales[4]);
  convolve(step, weights.conv, batch, offset, channels, spec.kernel);
  decay_gates(step, work.step.data(), weights.bias, weights.rate, spec.step_low, spec.step_high, work.step.data());

  LinearRecurrenceParams params;
  params.rows = state_rows(batch, offset + mixer_sizes(spec).conv_state);
  params.v = work.conv.data();
  params.k = work.conv.data() + inner;
  params.q = work.conv.data() + inner + states;
  params.q_stride = params.k_stride = params.v_stride = channels;
  params.decay = work.decay.data();
  params.decay_stride = spec.num_heads;
  params.step = work.step.data();
  params.skip = weights.skip.data();
  params.num_heads = spec.num_heads;
  params.num_key_heads = spec.num_groups;
  params.key_dim = spec.state_size;
  params.value_dim = spec.head_dim;
  params.out = work.mixed.data();
  params.out_stride = inner;
  step.backend.linear_recurrence(params);

  if (spec.gated_norm) {
    norm_and_gate(step, weights.norm, step.spec.norm_eps, spec.norm_groups, inner / spec.norm_groups, Activation::kSilu,
                  !spec.norm_first);
  } else {
    activate(step, Activation::kSilu, work.gate_in.data(), work.mixed.data(), inner, work.mixed.data());
  }
}

void mix(const StepContext& step, const GatedDelta& spec, const GatedDeltaWeights& weights, const Batch& batch,
         int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t keys = spec.keys(), values = spec.values(), channels = spec.conv_channels();
  float* const in = work.mixer_in.data();
  const LinearOutput inputs[] = {
      to(weights.q, in, channels),       to(weights.k, in + keys, channels), to(weights.v, in + 2 * keys, channels),
      weights.z.to(work.gate_in.data()), weights.a.to(work.decay.data()),    weights.b.to(work.step.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, inputs);
  convolve(step, weights.conv, batch, offset, channels, spec.kernel);
  normalize_keys(step, weights.unit, 2 * spec.num_key_heads, channels);
  decay_gates(step, work.decay.data(), weights.bias, weights.rate, 0.0f, INFINITY, nullptr);
  activate(step, Activation::kSigmoid, work.step.data(), nullptr, spec.num_heads, work.step.data());
  scale(step, work.step.data(), spec.num_heads, spec.step_scale);

  LinearRecurrenceParams params;
  params.rows = state_rows(batch, offset + mixer_sizes(spec).conv_state);
  params.q = work.conv.data();
  params.k = work.conv.data() + keys;
  params.v = work.conv.data() + 2 * keys;
  params.q_stride = params.k_stride = params.v_stride = channels;
  params.decay = work.decay.data();
  params.decay_stride = spec.num_heads;
  params.step = work.step.data();
  params.delta = true;
  params.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.key_dim)));
  params.num_heads = spec.num_heads;
  params.num_key_heads = spec.num_key_heads;
  params.key_dim = spec.key_dim;
  params.value_dim = spec.value_dim;
  params.out = work.mixed.data();
  params.out_stride = values;
  step.backend.linear_recurrence(params);
  norm_and_gate(step, weights.norm, spec.norm_eps, spec.num_heads, spec.value_dim, Activation::kSilu, false);
}

void mix(const StepContext& step, const KimiDelta& spec, const KimiDeltaWeights& weights, const Batch& batch,
         int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t width = spec.width(), channels = 3 * width;
  float* const in = work.mixer_in.data();
  // The low-rank inner values lie where the convolution's output will.
  float* const decay_inner = work.conv.data();
  float* const gate_inner = decay_inner + step.num_rows * spec.head_dim;
  const LinearOutput inputs[] = {
      to(weights.q, in, channels),        to(weights.k, in + width, channels), to(weights.v, in + 2 * width, channels),
      weights.decay_down.to(decay_inner), weights.gate_down.to(gate_inner),    weights.step.to(work.step.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, inputs);
  const LinearOutput decays[] = {weights.decay_up.to(work.decay.data())};
  linear(step, decay_inner, spec.head_dim, decays);
  const LinearOutput gates[] = {weights.gate_up.to(work.gate_in.data())};
  linear(step, gate_inner, spec.head_dim, gates);
  convolve(step, weights.conv, batch, offset, channels, spec.kernel);
  normalize_keys(step, weights.unit, 2 * int64_t{spec.num_heads}, channels);
  decay_gates(step, work.decay.data(), weights.bias, weights.rate, 0.0f, INFINITY, nullptr);
  activate(step, Activation::kSigmoid, work.step.data(), nullptr, spec.num_heads, work.step.data());

  LinearRecurrenceParams params;
  params.rows = state_rows(batch, offset + mixer_sizes(spec).conv_state);
  params.q = work.conv.data();
  params.k = work.conv.data() + width;
  params.v = work.conv.data() + 2 * width;
  params.q_stride = params.k_stride = params.v_stride = channels;
  params.decay = work.decay.data();
  params.decay_stride = width;
  params.channel_decay = true;
  params.step = work.step.data();
  params.delta = true;
  params.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  params.num_heads = params.num_key_heads = spec.num_heads;
  params.key_dim = params.value_dim = spec.head_dim;
  params.out = work.mixed.data();
  params.out_stride = width;
  step.backend.linear_recurrence(params);
  norm_and_gate(step, weights.norm, spec.norm_eps, spec.num_heads, spec.head_dim, Activation::kSigmoid, false);
}

void mix(const StepContext& step, const LightningAttention& spec, const LightningWeights& weights, const Batch& batch,
         int64_t offset) {
  ForwardWorkspace& work = step.work;
  const int64_t width = spec.width(), stride = 3 * width;
  float* const in = work.mixer_in.data();
  const LinearOutput inputs[] = {to(weights.q, in, stride), to(weights.k, in + width, stride),
                                 to(weights.v, in + 2 * width, stride), weights.gate.to(work.gate_in.data())};
  linear(step, work.normed.data(), step.spec.hidden_size, inputs);
  activate(step, Activation::kSilu, in, nullptr, stride, in);

  LinearRecurrenceParams params;
  params.rows = state_rows(batch, offset);
  params.q = in;
  params.k = in + width;
  params.v = in + 2 * width;
  params.q_stride = params.k_stride = params.v_stride = stride;
  params.decay = weights.decay.data();
  params.num_heads = params.num_key_heads = spec.num_heads;
  params.key_dim = params.value_dim = spec.head_dim;
  params.out = work.mixed.data();
  params.out_stride = width;
  step.backend.linear_recurrence(params);
  norm_and_gate(step, weights.norm, spec.norm_eps, 1, width, Activation::kSigmoid, false);
}

}  // namespace headrace
