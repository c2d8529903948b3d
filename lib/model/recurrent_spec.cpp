#include "model/recurrent_spec.h"

#include <cmath>
#include <vector>

#include "formats/json_writer.h"
#include "model/mixer.h"

namespace headrace {
namespace {

constexpr int64_t kMostChannels = int64_t{1} << 20;
constexpr int64_t kMostHeads = int64_t{1} << 14;
constexpr int64_t kMostDim = int64_t{1} << 12;

Status check_range(const std::string& place, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) return malformed(place, "{} is outside [{}, {}]", value, low, high);
  return {};
}

Status check_kernel(const std::string& place, int32_t kernel) {
  return check_range(place + "kernel", kernel, 2, kMostConvKernel);
}

Status check_groups(const std::string& place, int64_t heads, int64_t groups) {
  HEADRACE_RETURN_IF_ERROR(check_range(place, groups, 1, heads));
  if (heads % groups != 0) return malformed(place, "{} heads are no multiple of {}", heads, groups);
  return {};
}

}  // namespace

Status check_mixer(const std::string& place, const ShortConv& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "channels", spec.channels, 1, kMostChannels));
  return check_kernel(place, spec.kernel);
}

Status check_mixer(const std::string& place, const Mamba& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "channels", spec.channels, 1, kMostChannels));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "state_size", spec.state_size, 1, kMostDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "step_rank", spec.step_rank, 1, kMostChannels));
  return check_kernel(place, spec.kernel);
}

Status check_mixer(const std::string& place, const Mamba2& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMostHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", spec.head_dim, 1, kMostDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "state_size", spec.state_size, 1, kMostDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "inner", spec.inner(), 1, kMostChannels));
  HEADRACE_RETURN_IF_ERROR(check_groups(place + "num_groups", spec.num_heads, spec.num_groups));
  HEADRACE_RETURN_IF_ERROR(check_groups(place + "norm_groups", spec.inner(), spec.norm_groups));
  if (!(spec.step_low >= 0) || !(spec.step_high > spec.step_low)) {
    return malformed(place + "step", "bounds {} and {} are none", spec.step_low, spec.step_high);
  }
  for (const float scale : spec.scales) {
    if (!std::isfinite(scale)) return malformed(place + "scales", "not a finite number");
  }
  return check_kernel(place, spec.kernel);
}

Status check_mixer(const std::string& place, const GatedDelta& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMostHeads));
  HEADRACE_RETURN_IF_ERROR(check_groups(place + "num_key_heads", spec.num_heads, spec.num_key_heads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "key_dim", spec.key_dim, 1, kMostDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "value_dim", spec.value_dim, 1, kMostDim));
  if (!(spec.norm_eps > 0)) return malformed(place + "norm_eps", "must be a positive number");
  int64_t parts = 0;
  for (const int32_t part : spec.conv_parts) {
    HEADRACE_RETURN_IF_ERROR(check_range(place + "conv_parts", part, 0, spec.conv_channels()));
    parts += part;
  }
  if (parts != 0 && parts != spec.conv_channels()) {
    return malformed(place + "conv_parts", "{} channels, the layer has {}", parts, spec.conv_channels());
  }
  return check_kernel(place, spec.kernel);
}

Status check_mixer(const std::string& place, const KimiDelta& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMostHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", spec.head_dim, 1, kMostDim));
  if (!(spec.norm_eps > 0)) return malformed(place + "norm_eps", "must be a positive number");
  return check_kernel(place, spec.kernel);
}

Status check_mixer(const std::string& place, const LightningAttention& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMostHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", spec.head_dim, 1, kMostDim));
  if (!(spec.slope_factor > 0) || !std::isfinite(spec.slope_factor)) {
    return malformed(place + "slope_factor", "must be a positive number");
  }
  if (!(spec.norm_eps > 0)) return malformed(place + "norm_eps", "must be a positive number");
  return {};
}

Status check_mixer(const std::string&, const NoAttention&) { return {}; }

MixerSizes mixer_sizes(const ShortConv& spec) {
  MixerSizes sizes;
  sizes.in = 3 * int64_t{spec.channels};
  sizes.out = spec.channels;
  sizes.conv_state = int64_t{spec.kernel - 1} * spec.channels;
  return sizes;
}

MixerSizes mixer_sizes(const Mamba& spec) {
  MixerSizes sizes;
  sizes.in = sizes.conv = sizes.gate = sizes.out = spec.channels;
  sizes.step = spec.step_rank;
  sizes.decay = 2 * int64_t{spec.state_size};  // B and C
  sizes.conv_state = int64_t{spec.kernel - 1} * spec.channels;
  sizes.state = int64_t{spec.state_size} * spec.channels;
  return sizes;
}

MixerSizes mixer_sizes(const Mamba2& spec) {
  MixerSizes sizes;
  sizes.in = sizes.conv = spec.conv_channels();
  sizes.gate = sizes.out = spec.inner();
  sizes.step = sizes.decay = spec.num_heads;
  sizes.conv_state = int64_t{spec.kernel - 1} * spec.conv_channels();
  sizes.state = int64_t{spec.state_size} * spec.inner();
  return sizes;
}

MixerSizes mixer_sizes(const GatedDelta& spec) {
  MixerSizes sizes;
  sizes.in = sizes.conv = spec.conv_channels();
  sizes.gate = sizes.out = spec.values();
  sizes.step = sizes.decay = spec.num_heads;
  sizes.conv_state = int64_t{spec.kernel - 1} * spec.conv_channels();
  sizes.state = int64_t{spec.key_dim} * spec.values();
  return sizes;
}

MixerSizes mixer_sizes(const KimiDelta& spec) {
  MixerSizes sizes;
  sizes.in = sizes.conv = 3 * spec.width();
  sizes.gate = sizes.decay = sizes.out = spec.width();
  sizes.step = std::max(spec.num_heads, spec.head_dim);
  sizes.conv_state = int64_t{spec.kernel - 1} * 3 * spec.width();
  sizes.state = int64_t{spec.head_dim} * spec.width();
  return sizes;
}

MixerSizes mixer_sizes(const LightningAttention& spec) {
  MixerSizes sizes;
  sizes.in = 3 * spec.width();
  sizes.gate = sizes.out = spec.width();
  sizes.state = int64_t{spec.head_dim} * spec.width();
  return sizes;
}

MixerSizes mixer_sizes(const NoAttention&) { return {}; }

void write_mixer(JsonWriter& out, const ShortConv& spec) {
  out.member("kind", "short_conv");
  out.member("channels", spec.channels);
  out.member("kernel", spec.kernel);
  out.member("bias", spec.bias);
}

void write_mixer(JsonWriter& out, const Mamba& spec) {
  out.member("kind", "mamba");
  out.member("channels", spec.channels);
  out.member("state_size", spec.state_size);
  out.member("step_rank", spec.step_rank);
  out.member("kernel", spec.kernel);
  out.member("conv_bias", spec.conv_bias);
  out.member("bias", spec.bias);
  out.member("log_rates", spec.log_rates);
}

void write_mixer(JsonWriter& out, const Mamba2& spec) {
  out.member("kind", "mamba2");
  out.member("num_heads", spec.num_heads);
  out.member("head_dim", spec.head_dim);
  out.member("state_size", spec.state_size);
  out.member("num_groups", spec.num_groups);
  out.member("kernel", spec.kernel);
  out.member("conv_bias", spec.conv_bias);
  out.member("bias", spec.bias);
  out.member("log_rates", spec.log_rates);
  out.member("step_low", spec.step_low);
  out.member("step_high", std::min(spec.step_high, 3e38f));
  out.member("gated_norm", spec.gated_norm);
  out.member("norm_first", spec.norm_first);
  out.member("norm_groups", spec.norm_groups);
  out.list("scales", std::vector<float>(spec.scales.begin(), spec.scales.end()));
}

void write_mixer(JsonWriter& out, const GatedDelta& spec) {
  out.member("kind", "gated_delta");
  out.member("num_heads", spec.num_heads);
  out.member("num_key_heads", spec.num_key_heads);
  out.member("key_dim", spec.key_dim);
  out.member("value_dim", spec.value_dim);
  out.member("kernel", spec.kernel);
  out.member("log_rates", spec.log_rates);
  out.member("step_scale", spec.step_scale);
  out.member("norm_eps", spec.norm_eps);
}

void write_mixer(JsonWriter& out, const KimiDelta& spec) {
  out.member("kind", "kimi_delta");
  out.member("num_heads", spec.num_heads);
  out.member("head_dim", spec.head_dim);
  out.member("kernel", spec.kernel);
  out.member("norm_eps", spec.norm_eps);
}

void write_mixer(JsonWriter& out, const LightningAttention& spec) {
  out.member("kind", "lightning");
  out.member("num_heads", spec.num_heads);
  out.member("head_dim", spec.head_dim);
  out.member("slope_factor", spec.slope_factor);
  out.member("norm_eps", spec.norm_eps);
}

void write_mixer(JsonWriter& out, const NoAttention&) { out.member("kind", "none"); }

}  // namespace headrace
