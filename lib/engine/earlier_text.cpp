#include "engine/earlier_text.h"

#include <algorithm>

namespace headrace::engine {

Status EarlierTextParams::validate() const {
  if (prompt_in_all && !condition_on_prev_tokens) {
    return invalid_argument("prompt_condition_type", "all segments: counts only beside condition_on_prev_tokens");
  }
  return {};
}

EarlierText::EarlierText(const EarlierTextParams& params, int32_t previous, int32_t zero, int64_t max_tokens)
    : conditions_(params.condition_on_prev_tokens),
      prompt_in_all_(params.prompt_in_all && !params.prompt_ids.empty()),
      prompt_(params.prompt_ids),
      previous_(previous),
      zero_(zero),
      max_tokens_(max_tokens) {
  if (prompt_.empty()) return;
  const bool has_previous = previous >= 0;
  if (has_previous && prompt_.front() != previous) prompt_.insert(prompt_.begin(), previous);
  if (!prompt_in_all_) add_segment(std::span(prompt_).subspan(has_previous ? 1 : 0));
}

std::vector<int32_t> EarlierText::tokens() const {
  if (!conditions_ || is_hot_ || !has_segments_) return prompt_;
  std::vector<int32_t> out;
  if (prompt_in_all_) {
    out = prompt_;
  } else if (previous_ >= 0) {
    out = {previous_};
  }
  out.insert(out.end(), said_.begin(), said_.end());
  return out;
}

int64_t EarlierText::max_size() const {
  const auto prompt = std::ssize(prompt_);
  if (!conditions_) return prompt;
  return prompt_in_all_ ? prompt + max_tokens_ : std::max(prompt, max_tokens_ + 1);
}

// Of two times at the end the second one is where the next window begins, and comes again there.
void EarlierText::add_segment(std::span<const int32_t> tokens) {
  has_segments_ = true;
  if (tokens.size() > 2 && tokens[tokens.size() - 2] >= zero_) tokens = tokens.first(tokens.size() - 1);
  said_.insert(said_.end(), tokens.begin(), tokens.end());
  const int64_t surplus = std::ssize(said_) - max_tokens_;
  if (surplus > 0) said_.erase(said_.begin(), said_.begin() + surplus);
}

}  // namespace headrace::engine
