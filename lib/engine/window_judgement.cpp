#include "engine/window_judgement.h"

#include <cmath>
#include <numeric>
#include <vector>

#ifdef HEADRACE_HAVE_ZLIB
#include <zlib.h>
#endif

namespace headrace::engine {

namespace {

#ifdef HEADRACE_HAVE_ZLIB
constexpr bool kHasZlib = true;
#else
constexpr bool kHasZlib = false;
#endif

Status check_finite(const char* place, const std::optional<double>& threshold) {
  if (!threshold || std::isfinite(*threshold)) return {};
  return invalid_argument(place, "{} is not finite", *threshold);
}

// A rejected text has at least one token; an empty one is none that is unlikely.
double mean(std::span<const float> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Status WindowThresholds::validate() const {
  HEADRACE_RETURN_IF_ERROR(check_finite("compression_ratio_threshold", compression_ratio));
  HEADRACE_RETURN_IF_ERROR(check_finite("logprob_threshold", logprob));
  HEADRACE_RETURN_IF_ERROR(check_finite("no_speech_threshold", no_speech));
  if (no_speech && !logprob) return invalid_argument("no_speech_threshold", "counts only beside logprob_threshold");
  if (compression_ratio && !kHasZlib) {
    return unsupported("compression_ratio_threshold", "the library was built without zlib");
  }
  return {};
}

WindowVerdict judge_window(const WindowThresholds& thresholds, std::span<const int32_t> tokens,
                           std::span<const float> logprobs, int32_t vocab_size) {
  if (thresholds.logprob && mean(logprobs) < *thresholds.logprob) return WindowVerdict::kUnlikely;
  const bool repeats =
      thresholds.compression_ratio && compression_ratio(tokens, vocab_size) > *thresholds.compression_ratio;
  return repeats ? WindowVerdict::kRejected : WindowVerdict::kStands;
}

double compression_ratio([[maybe_unused]] std::span<const int32_t> tokens, [[maybe_unused]] int32_t vocab_size) {
#ifdef HEADRACE_HAVE_ZLIB
  const int width = static_cast<int>(std::log2(vocab_size) / 8) + 1;
  std::vector<Bytef> bytes;
  for (const int32_t token : tokens) {
    for (int i = 0; i < width; ++i) bytes.push_back(static_cast<Bytef>(token >> (8 * i)));
  }
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<Bytef> compressed(size);
  if (compress(compressed.data(), &size, bytes.data(), static_cast<uLong>(bytes.size())) != Z_OK) return 0;
  return static_cast<double>(bytes.size()) / static_cast<double>(size);
#else
  return 0;
#endif
}

}  // namespace headrace::engine
