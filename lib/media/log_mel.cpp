#include "media/log_mel.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace headrace {

namespace {

using Complex = std::complex<double>;

constexpr double kHighestFrequency = 8000.0;
constexpr double kSmallestPower = 1e-10;
constexpr double kRange = 8.0;  // powers of ten below the largest that are told apart

// Slaney's scale: linear up to 1000 Hz, 15 mels; then logarithmic, 27 mels for a factor of 6.4.
double mel_to_hertz(double mel) {
  return mel < 15.0 ? mel * 200.0 / 3.0 : 1000.0 * std::exp((mel - 15.0) * std::log(6.4) / 27.0);
}
double hertz_to_mel(double hertz) {
  return hertz < 1000.0 ? hertz * 3.0 / 200.0 : 15.0 + std::log(hertz / 1000.0) * 27.0 / std::log(6.4);
}

// A triangle over the frequencies of a transform, as tall as makes bands of equal power alike.
struct Band {
  int32_t first = 0;
  std::vector<double> weights;
};

std::vector<Band> make_bands(const LogMelSpec& spec) {
  const int32_t bins = spec.frame_length / 2 + 1;
  const double top = hertz_to_mel(kHighestFrequency);
  std::vector<double> edges;
  for (int32_t i = 0; i < spec.num_mels + 2; ++i) edges.push_back(mel_to_hertz(top * i / (spec.num_mels + 1)));
  std::vector<Band> out(static_cast<size_t>(spec.num_mels));
  for (size_t mel = 0; mel < out.size(); ++mel) {
    const double low = edges[mel], middle = edges[mel + 1], high = edges[mel + 2];
    for (int32_t bin = 0; bin < bins; ++bin) {
      const double hertz = static_cast<double>(spec.sample_rate / 2) * bin / (bins - 1);
      const double height = std::min((hertz - low) / (middle - low), (high - hertz) / (high - middle));
      if (height <= 0.0) continue;
      if (out[mel].weights.empty()) out[mel].first = bin;
      out[mel].weights.push_back(height * 2.0 / (high - low));
    }
  }
  return out;
}

// A discrete Fourier transform of any length, by the factors of it.
class Transform {
 public:
  explicit Transform(int32_t length) : length_(static_cast<size_t>(length)), roots_(length_), scratch_(length_) {
    for (size_t i = 0; i < length_; ++i) {
      const double angle = -2.0 * M_PI * static_cast<double>(i) / static_cast<double>(length_);
      roots_[i] = {std::cos(angle), std::sin(angle)};
    }
  }

  void run(std::vector<Complex>& values) { split(values.data(), scratch_.data(), length_); }

 private:
  static size_t smallest_factor(size_t length) {
    for (size_t factor = 2; factor * factor <= length; ++factor) {
      if (length % factor == 0) return factor;
    }
    return length;
  }

  // values[0 .. length) in place; scratch of as many.
  void split(Complex* values, Complex* scratch, size_t length) {
    if (length == 1) return;
    const size_t factor = smallest_factor(length), part = length / factor, stride = length_ / length;
    for (size_t i = 0; i < length; ++i) scratch[i % factor * part + i / factor] = values[i];
    for (size_t f = 0; f < factor; ++f) split(scratch + f * part, values + f * part, part);
    for (size_t i = 0; i < length; ++i) {
      Complex sum = 0.0;
      for (size_t f = 0; f < factor; ++f) sum += scratch[f * part + i % part] * roots_[i * f % length * stride];
      values[i] = sum;
    }
  }

  const size_t length_;
  std::vector<Complex> roots_, scratch_;
};

// The waveform continues mirrored before its start and behind its end.
int64_t mirrored(int64_t at, int64_t count) {
  while (at < 0 || at >= count) at = at < 0 ? -at : 2 * (count - 1) - at;
  return at;
}

Status check_key(const nlohmann::json& config, const char* key, const nlohmann::json& allowed) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null() || *it == allowed) return {};
  return unsupported(std::string("preprocessor_config.json/") + key, "{}", it->dump());
}

Result<int64_t> read_integer(const nlohmann::json& config, const char* key, int64_t low, int64_t high,
                             int64_t fallback) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return fallback;
  const std::string place = std::string("preprocessor_config.json/") + key;
  if (!it->is_number_integer()) return malformed(place, "not an integer");
  const auto value = it->get<int64_t>();
  if (value < low || value > high) return malformed(place, "{} is outside [{}, {}]", value, low, high);
  return value;
}

}  // namespace

Result<LogMelSpec> read_log_mel(const nlohmann::json& config) {
  if (!config.is_object()) return malformed("preprocessor_config.json", "is no JSON object");
  constexpr std::string_view kKnown[] = {"feature_extractor_type", "feature_size", "sampling_rate", "hop_length",
                                         "chunk_length", "n_fft", "padding_value", "dither",
                                         // What follows from these, and how the extractor is run or what it belongs to.
                                         "n_samples", "nb_max_frames", "mel_filters", "padding_side", "processor_class",
                                         "return_attention_mask", "truncation"};
  for (const auto& item : config.items()) {
    if (item.value().is_null() || std::ranges::find(kKnown, item.key()) != std::end(kKnown)) continue;
    return unsupported("preprocessor_config.json/" + item.key(),
                       "this key is not known here and may change the result");
  }
  HEADRACE_RETURN_IF_ERROR(check_key(config, "feature_extractor_type", "WhisperFeatureExtractor"));
  HEADRACE_RETURN_IF_ERROR(check_key(config, "padding_value", 0.0));
  HEADRACE_RETURN_IF_ERROR(check_key(config, "dither", 0.0));
  LogMelSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t mels, read_integer(config, "feature_size", 1, 1024, spec.num_mels));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rate, read_integer(config, "sampling_rate", 1000, 1 << 20, spec.sample_rate));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t length, read_integer(config, "n_fft", 2, 1 << 14, spec.frame_length));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hop, read_integer(config, "hop_length", 1, 1 << 14, spec.hop_length));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t seconds, read_integer(config, "chunk_length", 1, 3600, 30));
  if (length % 2 != 0) return unsupported("preprocessor_config.json/n_fft", "{} is odd", length);
  spec.num_mels = static_cast<int32_t>(mels);
  spec.sample_rate = static_cast<int32_t>(rate);
  spec.frame_length = static_cast<int32_t>(length);
  spec.hop_length = static_cast<int32_t>(hop);
  spec.num_samples = seconds * rate;
  return spec;
}

Result<std::vector<float>> log_mel(const LogMelSpec& spec, std::span<const float> samples) {
  const auto bad = std::ranges::find_if(samples, [](float value) { return !std::isfinite(value); });
  if (bad != samples.end()) return invalid_argument("audio", "sample {} is not finite", bad - samples.begin());
  const auto length = static_cast<size_t>(spec.frame_length);
  const auto num_frames = static_cast<size_t>(spec.num_frames()), num_mels = static_cast<size_t>(spec.num_mels);
  std::vector<double> window(length);
  for (size_t i = 0; i < length; ++i) {
    window[i] = 0.5 - 0.5 * std::cos(2.0 * M_PI * static_cast<double>(i) / static_cast<double>(length));
  }
  const std::vector<Band> bands = make_bands(spec);
  Transform transform(spec.frame_length);
  std::vector<Complex> frame(length);
  std::vector<double> powers(num_mels * num_frames);
  double largest = -INFINITY;
  for (size_t t = 0; t < num_frames; ++t) {
    const int64_t start = static_cast<int64_t>(t) * spec.hop_length - spec.frame_length / 2;
    for (size_t i = 0; i < length; ++i) {
      const auto at = static_cast<size_t>(mirrored(start + static_cast<int64_t>(i), spec.num_samples));
      frame[i] = at < samples.size() ? window[i] * static_cast<double>(samples[at]) : 0.0;
    }
    transform.run(frame);
    for (size_t mel = 0; mel < num_mels; ++mel) {
      double sum = 0.0;
      for (size_t i = 0; i < bands[mel].weights.size(); ++i) {
        sum += bands[mel].weights[i] * std::norm(frame[static_cast<size_t>(bands[mel].first) + i]);
      }
      const double power = std::log10(std::max(sum, kSmallestPower));
      largest = std::max(largest, power);
      powers[mel * num_frames + t] = power;
    }
  }
  std::vector<float> out;
  out.reserve(powers.size());
  for (const double power : powers) out.push_back(static_cast<float>((std::max(power, largest - kRange) + 4.0) / 4.0));
  return out;
}

}  // namespace headrace
