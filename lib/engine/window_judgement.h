// Whether what a model wrote for a window of audio stands. Reference: transformers' WhisperGenerationMixin._need_fallback.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"

namespace headrace::engine {

// Absent: not looked at.
struct WindowThresholds {
  std::optional<double> compression_ratio;  // a text above it repeats itself
  std::optional<double> logprob;            // a text whose tokens' mean is below it is a bad guess
  std::optional<double> no_speech;          // a window with such a text, and silence likelier than this, is silent

  // Places are the names of fields with "_threshold". kInvalidArgument for what is not finite, and for no_speech without
  // logprob; kUnsupported for a compression_ratio where the library was built without zlib.
  Status validate() const;
};

enum class WindowVerdict {
  kStands,
  kRejected,
  kUnlikely,  // rejected for its logprobs: silence, if that is likely
};

// tokens: all that were drawn, the end among them; logprobs: one per token, of what could come, where there is a threshold.
WindowVerdict judge_window(const WindowThresholds& thresholds, std::span<const int32_t> tokens,
                           std::span<const float> logprobs, int32_t vocab_size);

// Bytes of the ids, each as wide as the vocabulary needs, over those that zlib makes of them. 0 without zlib.
double compression_ratio(std::span<const int32_t> tokens, int32_t vocab_size);

}  // namespace headrace::engine
