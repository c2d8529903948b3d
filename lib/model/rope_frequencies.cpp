#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace headrace {

namespace {

// theta^(2i / dim). torch holds the exponent and the power in float32; the last bit of the exponent is worth
// radians at far positions, so it is rounded here as there.
std::vector<float> position_periods(double theta, int32_t rotary_dim) {
  std::vector<float> periods(static_cast<size_t>(rotary_dim) / 2);
  for (size_t i = 0; i < periods.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    periods[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return periods;
}

void scale_llama3(std::vector<float>& inv_freq, const RopeScaling& scaling) {
  const double old_length = scaling.original_max_positions;
  const double low_wavelength = old_length / scaling.low_freq_factor;
  const double high_wavelength = old_length / scaling.high_freq_factor;
  const float factor = static_cast<float>(scaling.factor);
  for (float& frequency : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > static_cast<float>(low_wavelength)) {
      frequency /= factor;
    } else if (wavelength >= static_cast<float>(high_wavelength)) {
      const float smooth = (static_cast<float>(old_length) / wavelength - static_cast<float>(scaling.low_freq_factor)) /
                           static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dim whose period turns `rotations` times within the original length.
double yarn_correction_dim(double rotations, int32_t dim, double theta, double original_length) {
  return dim * std::log(original_length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// Fast dims keep their frequency, slow ones are interpolated, with a ramp between.
void scale_yarn(RopeSpec& rope, const std::vector<float>& periods, const RopeScaling& scaling) {
  double low = yarn_correction_dim(scaling.beta_fast, rope.rotary_dim, rope.theta, scaling.original_max_positions);
  double high = yarn_correction_dim(scaling.beta_slow, rope.rotary_dim, rope.theta, scaling.original_max_positions);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < periods.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    const float extrapolated = 1.0f / periods[i];
    const float interpolated = 1.0f / (static_cast<float>(scaling.factor) * periods[i]);
    rope.inv_freq[i] = interpolated * (1.0f - kept) + extrapolated * kept;
  }
  double magnitude = yarn_magnitude(scaling.factor, 1.0);
  if (scaling.mscale.value_or(0) != 0 && scaling.mscale_all_dim.value_or(0) != 0) {
    magnitude =
        yarn_magnitude(scaling.factor, *scaling.mscale) / yarn_magnitude(scaling.factor, *scaling.mscale_all_dim);
  }
  rope.attention_factor = static_cast<float>(scaling.attention_factor.value_or(magnitude));
}

// Each frequency is divided by a factor of its own, by another one in long sequences.
void scale_longrope(RopeSpec& rope, const std::vector<float>& periods, const RopeScaling& scaling) {
  rope.long_inv_freq.resize(periods.size());
  for (size_t i = 0; i < periods.size(); ++i) {
    rope.inv_freq[i] = 1.0f / (static_cast<float>(scaling.short_factors[i]) * periods[i]);
    rope.long_inv_freq[i] = 1.0f / (static_cast<float>(scaling.long_factors[i]) * periods[i]);
  }
  rope.short_length = static_cast<int32_t>(scaling.original_max_positions);
  const double magnitude = scaling.factor <= 1.0
                               ? 1.0
                               : std::sqrt(1.0 + std::log(scaling.factor) / std::log(scaling.original_max_positions));
  rope.attention_factor = static_cast<float>(scaling.attention_factor.value_or(magnitude));
}

Status check_positive(const char* field, double value) {
  if (!(value > 0) || !std::isfinite(value)) return malformed(field, "{} is not a positive number", value);
  return {};
}

Status check_longrope(int32_t rotary_dim, const RopeScaling& scaling) {
  if (scaling.original_max_positions < 2 || scaling.original_max_positions > (1 << 28)) {
    return malformed("original_max_position_embeddings", "{} is out of range", scaling.original_max_positions);
  }
  if (scaling.attention_factor) HEADRACE_RETURN_IF_ERROR(check_positive("attention_factor", *scaling.attention_factor));
  for (const auto& [field, factors] :
       {std::pair("short_factor", &scaling.short_factors), std::pair("long_factor", &scaling.long_factors)}) {
    if (factors->size() != static_cast<size_t>(rotary_dim) / 2) {
      return malformed(field, "{} factors for {} rotating dims", factors->size(), rotary_dim);
    }
    for (const double factor : *factors) HEADRACE_RETURN_IF_ERROR(check_positive(field, factor));
  }
  return {};
}

Status check_scaling(double theta, int32_t rotary_dim, const RopeScaling& scaling) {
  HEADRACE_RETURN_IF_ERROR(check_positive("rope_theta", theta));
  if (rotary_dim < 0 || rotary_dim % 2 != 0) {
    return malformed("head_dim", "{} dims cannot rotate: the number must be even", rotary_dim);
  }
  if (scaling.type == "default") return {};
  HEADRACE_RETURN_IF_ERROR(check_positive("factor", scaling.factor));
  if (scaling.type == "linear") return {};
  if (scaling.type == "proportional") {
    if (!(scaling.rotating_share > 0) || scaling.rotating_share > 1) {
      return malformed("partial_rotary_factor", "{} is no share of a head's dims", scaling.rotating_share);
    }
    return {};
  }
  if (scaling.type == "dynamic") {
    if (scaling.alpha == 0) {
      if (rotary_dim <= 2) return malformed("rope_type", "dynamic needs more than {} rotating dims", rotary_dim);
      if (scaling.original_max_positions < 1 || scaling.original_max_positions > (1 << 28)) {
        return malformed("max_position_embeddings", "{} is out of range", scaling.original_max_positions);
      }
      return {};
    }
    if (rotary_dim <= 2) return malformed("alpha", "needs more than {} rotating dims", rotary_dim);
    return check_positive("alpha", scaling.alpha);
  }
  if (scaling.type == "longrope") return check_longrope(rotary_dim, scaling);
  if (scaling.type != "llama3" && scaling.type != "yarn") {
    return unsupported("rope_type",
                       "unknown rope type '{}' (known: default, linear, llama3, yarn, longrope, "
                       "dynamic, proportional)",
                       scaling.type);
  }
  HEADRACE_RETURN_IF_ERROR(check_positive("original_max_position_embeddings", scaling.original_max_positions));
  if (scaling.type == "llama3") {
    HEADRACE_RETURN_IF_ERROR(check_positive("low_freq_factor", scaling.low_freq_factor));
    HEADRACE_RETURN_IF_ERROR(check_positive("high_freq_factor", scaling.high_freq_factor));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      return malformed("high_freq_factor", "{} is not above low_freq_factor {}", scaling.high_freq_factor,
                       scaling.low_freq_factor);
    }
    return {};
  }
  if (theta <= 1) return malformed("rope_theta", "{} is not above 1, which yarn needs", theta);
  HEADRACE_RETURN_IF_ERROR(check_positive("beta_fast", scaling.beta_fast));
  HEADRACE_RETURN_IF_ERROR(check_positive("beta_slow", scaling.beta_slow));
  if (scaling.attention_factor) HEADRACE_RETURN_IF_ERROR(check_positive("attention_factor", *scaling.attention_factor));
  if (scaling.mscale && !std::isfinite(*scaling.mscale)) return malformed("mscale", "not finite");
  if (scaling.mscale_all_dim && !std::isfinite(*scaling.mscale_all_dim))
    return malformed("mscale_all_dim", "not finite");
  return {};
}

}  // namespace

Result<RopeSpec> make_rope(double theta, int32_t rotary_dim, const RopeScaling& scaling) {
  HEADRACE_RETURN_IF_ERROR(check_scaling(theta, rotary_dim, scaling));
  RopeSpec rope;
  rope.type = scaling.type;
  rope.theta = theta;
  rope.rotary_dim = rotary_dim;
  const double stretched = scaling.type == "dynamic" && scaling.alpha != 0
                               ? theta * std::pow(scaling.alpha, static_cast<double>(rotary_dim) / (rotary_dim - 2))
                               : theta;
  const std::vector<float> periods = position_periods(stretched, rotary_dim);
  rope.inv_freq.resize(periods.size());
  for (size_t i = 0; i < periods.size(); ++i) rope.inv_freq[i] = 1.0f / periods[i];
  if (scaling.type == "linear") {
    for (float& frequency : rope.inv_freq) frequency /= static_cast<float>(scaling.factor);
  } else if (scaling.type == "proportional") {
    const auto rotating = static_cast<size_t>(scaling.rotating_share * rotary_dim / 2);
    for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
      rope.inv_freq[i] = i < rotating ? rope.inv_freq[i] / static_cast<float>(scaling.factor) : 0.0f;
    }
  } else if (scaling.type == "llama3") {
    scale_llama3(rope.inv_freq, scaling);
  } else if (scaling.type == "yarn") {
    scale_yarn(rope, periods, scaling);
  } else if (scaling.type == "longrope") {
    scale_longrope(rope, periods, scaling);
  } else if (scaling.type == "dynamic" && scaling.alpha == 0) {
    rope.dynamic_factor = scaling.factor;
    rope.short_length = static_cast<int32_t>(scaling.original_max_positions);
  }
  for (const float frequency : rope.inv_freq) {
    if (!std::isfinite(frequency) || frequency < 0)
      return malformed("rope_theta", "{} gives no finite frequencies", theta);
  }
  return rope;
}

}  // namespace headrace
