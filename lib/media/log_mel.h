// The log-mel spectrogram that Whisper's encoder takes: what transformers' WhisperFeatureExtractor makes of a waveform.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace headrace {

struct LogMelSpec {
  int32_t num_mels = 80;
  int32_t sample_rate = 16000;
  int32_t frame_length = 400;    // samples under a periodic Hann window; even
  int32_t hop_length = 160;      // samples between frames
  int64_t num_samples = 480000;  // of the result, zeros behind a shorter waveform
  int64_t num_frames() const { return num_samples / hop_length; }
};

// Reads preprocessor_config.json; absent keys are as the class has them. kUnsupported with the key as place for another
// class, for keys that are not known and for dither.
Result<LogMelSpec> read_log_mel(const nlohmann::json& config);

// samples: mono at the spec's rate, in [-1, 1]; what is behind num_samples is cut off. Gives [num_mels, num_frames()]:
// log10 of the mel bands' power, at most 8 below the largest, plus 4, over 4. Computed in float64. kInvalidArgument ("audio")
// for a sample that is not finite.
Result<std::vector<float>> log_mel(const LogMelSpec& spec, std::span<const float> samples);

}  // namespace headrace
