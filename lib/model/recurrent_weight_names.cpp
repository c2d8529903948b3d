// Which weights a recurrent layer has, under our names, and how they become what the ops take.
#include <cmath>

#include "model/mixer_weights.h"

namespace headrace {

namespace {

uint64_t size(int64_t value) { return static_cast<uint64_t>(value); }

void add_linear(std::vector<WeightEntry>& out, const std::string& name, int64_t rows, int64_t cols, bool bias) {
  out.push_back({name + ".weight", "", {size(rows), size(cols)}});
  if (bias) out.push_back({name + ".bias", "", {size(rows)}});
}

// A vector of which files may make a matrix, or a column.
void add_vector(std::vector<WeightEntry>& out, const std::string& name, int64_t rows, int64_t cols = 1) {
  out.push_back({name, "", {size(rows * cols)}});
  out.back().file_shape = {size(rows), size(cols)};
}

void add_conv(std::vector<WeightEntry>& out, const std::string& name, int64_t channels, int64_t kernel, bool bias) {
  add_vector(out, name + ".weight", channels, kernel);
  if (bias) add_vector(out, name + ".bias", channels);
}

}  // namespace

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const ShortConv& spec, int64_t hidden) {
  for (const char* part : {"conv_b", "conv_c", "conv_x"}) {
    add_linear(out, prefix + part, spec.channels, hidden, spec.bias);
  }
  add_conv(out, prefix + "conv", spec.channels, spec.kernel, spec.bias);
  add_linear(out, prefix + "mixer_out", hidden, spec.channels, spec.bias);
}

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const Mamba& spec, int64_t hidden) {
  add_linear(out, prefix + "mixer_x", spec.channels, hidden, spec.bias);
  add_linear(out, prefix + "mixer_z", spec.channels, hidden, spec.bias);
  add_conv(out, prefix + "conv", spec.channels, spec.kernel, spec.conv_bias);
  add_linear(out, prefix + "step_in", spec.step_rank, spec.channels, false);
  add_linear(out, prefix + "state_b", spec.state_size, spec.channels, false);
  add_linear(out, prefix + "state_c", spec.state_size, spec.channels, false);
  add_linear(out, prefix + "step", spec.channels, spec.step_rank, true);
  add_vector(out, prefix + "rate", spec.channels, spec.state_size);
  add_vector(out, prefix + "skip", spec.channels);
  add_linear(out, prefix + "mixer_out", hidden, spec.channels, spec.bias);
}

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const Mamba2& spec, int64_t hidden) {
  add_linear(out, prefix + "mixer_z", spec.inner(), hidden, spec.bias);
  add_linear(out, prefix + "mixer_xbc", spec.conv_channels(), hidden, spec.bias);
  add_linear(out, prefix + "mixer_step", spec.num_heads, hidden, spec.bias);
  add_conv(out, prefix + "conv", spec.conv_channels(), spec.kernel, spec.conv_bias);
  add_vector(out, prefix + "step.bias", spec.num_heads);
  add_vector(out, prefix + "rate", spec.num_heads);
  add_vector(out, prefix + "skip", spec.num_heads);
  if (spec.gated_norm) {
    add_vector(out, prefix + "mixer_norm.weight", spec.norm_groups, spec.inner() / spec.norm_groups);
  }
  add_linear(out, prefix + "mixer_out", hidden, spec.inner(), spec.bias);
}

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const GatedDelta& spec, int64_t hidden) {
  // Some files keep together what belongs to a key head.
  const int64_t group = spec.num_heads / spec.num_key_heads;
  const auto add = [&](const char* name, int64_t rows, int64_t row_block) {
    add_linear(out, prefix + name, rows, hidden, false);
    out.back().row_block = size(row_block);
  };
  add("mixer_q", spec.keys(), spec.key_dim);
  add("mixer_k", spec.keys(), spec.key_dim);
  add("mixer_v", spec.values(), group * spec.value_dim);
  add("mixer_z", spec.values(), group * spec.value_dim);
  add("mixer_beta", spec.num_heads, group);
  add("mixer_alpha", spec.num_heads, group);
  if (spec.conv_parts[0] == 0) {
    add_conv(out, prefix + "conv", spec.conv_channels(), spec.kernel, false);
  } else {
    for (size_t i = 0; i < 3; ++i) add_conv(out, prefix + kConvParts[i], spec.conv_parts[i], spec.kernel, false);
  }
  add_vector(out, prefix + "step.bias", spec.num_heads);
  add_vector(out, prefix + "rate", spec.num_heads);
  add_vector(out, prefix + "mixer_norm.weight", spec.value_dim);
  add_linear(out, prefix + "mixer_out", hidden, spec.values(), false);
}

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const KimiDelta& spec, int64_t hidden) {
  for (const char* part : {"mixer_q", "mixer_k", "mixer_v"}) {
    add_linear(out, prefix + part, spec.width(), hidden, false);
  }
  for (const char* part : kConvParts) add_conv(out, prefix + part, spec.width(), spec.kernel, false);
  add_linear(out, prefix + "decay_down", spec.head_dim, hidden, false);
  add_linear(out, prefix + "decay_up", spec.width(), spec.head_dim, false);
  add_linear(out, prefix + "mixer_beta", spec.num_heads, hidden, false);
  add_linear(out, prefix + "gate_down", spec.head_dim, hidden, false);
  add_linear(out, prefix + "gate_up", spec.width(), spec.head_dim, false);
  add_vector(out, prefix + "step.bias", spec.width());
  add_vector(out, prefix + "rate", spec.num_heads);
  add_vector(out, prefix + "mixer_norm.weight", spec.head_dim);
  add_linear(out, prefix + "mixer_out", hidden, spec.width(), false);
}

void add_mixer(std::vector<WeightEntry>& out, const std::string& prefix, const LightningAttention& spec,
               int64_t hidden) {
  for (const char* part : {"mixer_q", "mixer_k", "mixer_v"}) {
    add_linear(out, prefix + part, spec.width(), hidden, false);
    out.back().row_block = size(spec.head_dim);  // one tensor holds them head by head
  }
  add_linear(out, prefix + "mixer_gate", spec.width(), hidden, false);
  add_vector(out, prefix + "mixer_norm.weight", spec.width());
  add_linear(out, prefix + "mixer_out", hidden, spec.width(), false);
}

void add_mixer(std::vector<WeightEntry>&, const std::string&, const NoAttention&, int64_t) {}

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t cols) {
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      out[static_cast<size_t>(col * rows + row)] = values[static_cast<size_t>(row * cols + col)];
    }
  }
  return out;
}

void make_rates(std::vector<float>& values, bool log_rates) {
  if (!log_rates) return;
  for (float& value : values) value = -std::exp(value);
}

void scale_conv(ConvWeights& conv, int64_t kernel, int64_t first, int64_t count, float factor) {
  if (factor == 1.0f) return;
  const auto channels = static_cast<int64_t>(conv.weight.size()) / kernel;
  for (int64_t k = 0; k < kernel; ++k) {
    for (int64_t c = first; c < first + count; ++c) conv.weight[static_cast<size_t>(k * channels + c)] *= factor;
  }
}

}  // namespace headrace
