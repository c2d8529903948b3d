// The weights of recurrent layers: their names and shapes, and how they are loaded. A file's convolutions are
// [channels, 1, kernel] or [channels, kernel], its rates perhaps logarithms; the ops want channels side by side.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/weights.h"

namespace headrace {

// Weights of a layer, all names beginning with prefix.
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const ShortConv& spec, int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const Mamba& spec, int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const Mamba2& spec, int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const GatedDelta& spec, int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const KimiDelta& spec, int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const LightningAttention& spec,
               int64_t hidden);
void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const NoAttention& spec, int64_t hidden);

// [rows, cols] -> [cols, rows].
std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t cols);
// log(-rate) -> rate, unless they are rates already.
void make_rates(std::vector<float>& values, bool log_rates);
// Multiplies channels [first, first + count) of a loaded convolution.
void scale_conv(ConvWeights& conv, int64_t kernel, int64_t first, int64_t count, float factor);

// Tensors of the file that together are one convolution over q, k and v.
inline constexpr const char* kConvParts[] = {"conv_q", "conv_k", "conv_v"};

// Loader: linear(name, LinearWeight&) with its bias, vector(name, std::vector<float>&), optional_vector likewise.
template <class Loader>
Status load_conv(Loader& loader, const std::string& name, int64_t kernel, ConvWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.vector(name + ".weight", out.weight));
  out.weight = transposed(out.weight, static_cast<int64_t>(out.weight.size()) / kernel, kernel);
  return loader.optional_vector(name + ".bias", out.bias);
}

template <class Loader>
Status load_conv_parts(Loader& loader, const std::string& prefix, int64_t channels, int64_t kernel, ConvWeights& out) {
  std::vector<float> joined;
  for (const char* part : kConvParts) {
    std::vector<float> weight;
    HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + part + ".weight", weight));
    joined.insert(joined.end(), weight.begin(), weight.end());
  }
  out.weight = transposed(joined, channels, kernel);
  return {};
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const ShortConv& spec, ShortConvWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "conv_b", out.b));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "conv_c", out.c));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "conv_x", out.x));
  HEADRACE_RETURN_IF_ERROR(load_conv(loader, prefix + "conv", spec.kernel, out.conv));
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const Mamba& spec, MambaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_x", out.x));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_z", out.z));
  HEADRACE_RETURN_IF_ERROR(load_conv(loader, prefix + "conv", spec.kernel, out.conv));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "step_in", out.step_in));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "state_b", out.b));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "state_c", out.c));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "step", out.step));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "rate", out.rate));
  make_rates(out.rate, spec.log_rates);
  out.rate = transposed(out.rate, spec.channels, spec.state_size);
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "skip", out.skip));
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const Mamba2& spec, Mamba2Weights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_z", out.z));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_xbc", out.xbc));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_step", out.step));
  HEADRACE_RETURN_IF_ERROR(load_conv(loader, prefix + "conv", spec.kernel, out.conv));
  scale_conv(out.conv, spec.kernel, 0, spec.inner(), spec.scales[1]);
  scale_conv(out.conv, spec.kernel, spec.inner(), spec.group_states(), spec.scales[2]);
  scale_conv(out.conv, spec.kernel, spec.inner() + spec.group_states(), spec.group_states(), spec.scales[3]);
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "step.bias", out.bias));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "rate", out.rate));
  make_rates(out.rate, spec.log_rates);
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "skip", out.skip));
  HEADRACE_RETURN_IF_ERROR(loader.optional_vector(prefix + "mixer_norm.weight", out.norm));
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const GatedDelta& spec, GatedDeltaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_q", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_k", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_v", out.v));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_z", out.z));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_alpha", out.a));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_beta", out.b));
  if (spec.conv_parts[0] == 0) {
    HEADRACE_RETURN_IF_ERROR(load_conv(loader, prefix + "conv", spec.kernel, out.conv));
  } else {
    HEADRACE_RETURN_IF_ERROR(load_conv_parts(loader, prefix, spec.conv_channels(), spec.kernel, out.conv));
  }
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "step.bias", out.bias));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "rate", out.rate));
  make_rates(out.rate, spec.log_rates);
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "mixer_norm.weight", out.norm));
  out.unit.assign(static_cast<size_t>(spec.key_dim), 1.0f / std::sqrt(static_cast<float>(spec.key_dim)));
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const KimiDelta& spec, KimiDeltaWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_q", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_k", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_v", out.v));
  HEADRACE_RETURN_IF_ERROR(load_conv_parts(loader, prefix, 3 * spec.width(), spec.kernel, out.conv));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "decay_down", out.decay_down));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "decay_up", out.decay_up));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_beta", out.step));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "gate_down", out.gate_down));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "gate_up", out.gate_up));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "step.bias", out.bias));
  std::vector<float> rate;
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "rate", rate));
  make_rates(rate, true);
  for (const float value : rate) out.rate.insert(out.rate.end(), static_cast<size_t>(spec.head_dim), value);
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "mixer_norm.weight", out.norm));
  out.unit.assign(static_cast<size_t>(spec.head_dim), 1.0f / std::sqrt(static_cast<float>(spec.head_dim)));
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader& loader, const std::string& prefix, const LightningAttention& spec, LightningWeights& out) {
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_q", out.q));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_k", out.k));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_v", out.v));
  HEADRACE_RETURN_IF_ERROR(loader.linear(prefix + "mixer_gate", out.gate));
  HEADRACE_RETURN_IF_ERROR(loader.vector(prefix + "mixer_norm.weight", out.norm));
  for (int32_t head = 0; head < spec.num_heads; ++head) {
    const double slope = std::exp2(-8.0 * (head + 1) / spec.num_heads) * static_cast<double>(spec.slope_factor);
    out.decay.push_back(static_cast<float>(std::exp(-slope)));
  }
  return loader.linear(prefix + "mixer_out", out.out);
}

template <class Loader>
Status load_mixer(Loader&, const std::string&, const NoAttention&, NoAttentionWeights&) {
  return {};
}

}  // namespace headrace
