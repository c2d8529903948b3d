// What was said before a window, which the decoder is told in front of the window's own first tokens.
// Reference: transformers' WhisperGenerationMixin._prepare_decoder_input_ids and _prepare_segments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace headrace::engine {

struct EarlierTextParams {
  bool condition_on_prev_tokens = false;  // windows are told the text of those before them
  std::vector<int32_t> prompt_ids;        // text before the first window; empty: none
  bool prompt_in_all = false;  // it stays in front of each window's earlier text, in place of passing by with it

  // kInvalidArgument ("prompt_condition_type") for prompt_in_all of windows that are told nothing.
  Status validate() const;
};

// Text of windows drawn at this temperature or a higher one is not told.
inline constexpr float kHotTemperature = 0.5f;

class EarlierText {
 public:
  EarlierText() = default;
  // previous: the token that stands before such text, -1: none; ids from `zero` on are times; max_tokens: of the windows' text.
  EarlierText(const EarlierTextParams& params, int32_t previous, int32_t zero, int64_t max_tokens);

  // In front of the next window's first tokens.
  std::vector<int32_t> tokens() const;
  int64_t max_size() const;  // of those, at any window

  void add_segment(std::span<const int32_t> tokens);
  // The last window's.
  void set_temperature(float temperature) { is_hot_ = temperature >= kHotTemperature; }

 private:
  bool conditions_ = false, prompt_in_all_ = false, is_hot_ = false;
  bool has_segments_ = false;    // or a prompt that passes by as one
  std::vector<int32_t> prompt_;  // with the token before it
  int32_t previous_ = -1;
  int32_t zero_ = 0;
  int64_t max_tokens_ = 0;
  std::vector<int32_t> said_;  // the last max_tokens_
};

}  // namespace headrace::engine
