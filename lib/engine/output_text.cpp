#include "engine/output_text.h"

#include <utility>

namespace headrace::engine {

TopLogprobs top_logprobs_of(const SampledToken& token) {
  TopLogprobs top;
  for (const TokenLogprob& likely : token.top_logprobs) {
    top.token_ids.push_back(likely.token_id);
    top.logprobs.push_back(likely.logprob);
  }
  return top;
}

OutputText::OutputText(std::shared_ptr<const text::Tokenizer> tokenizer, bool skip_special,
                       std::optional<text::StopMatcher> stop_strings, int32_t num_logprobs)
    : matcher_(std::move(stop_strings)), num_logprobs_(num_logprobs) {
  if (tokenizer) detokenizer_.emplace(std::move(tokenizer), skip_special);
}

void OutputText::push(const SampledToken& token, bool silent, bool may_stop) {
  if (detokenizer_ && !silent) add(detokenizer_->push(token.token_id), may_stop);
  held_.push_back({token, num_pushed_});
}

void OutputText::add(const std::string& piece, bool may_stop) {
  num_pushed_ += piece.size();
  if (stopped_) return;
  may_stop_ = may_stop_ || may_stop;
  if (!matcher_ || !may_stop_) {
    text_ += piece;
    return;
  }
  const text::StopMatcher::Out out = matcher_->push(piece);
  text_ += out.text;
  stopped_ = out.stopped;
}

void OutputText::finish() {
  if (finished_) return;
  finished_ = true;
  if (detokenizer_ && !stopped_) add(detokenizer_->flush(), false);
  if (matcher_ && !stopped_) {
    const text::StopMatcher::Out out = matcher_->flush();
    text_ += out.text;
    stopped_ = out.stopped;
  }
}

std::optional<Event> OutputText::take() {
  Event event;
  event.type = EventType::kTokens;
  event.text = text_.substr(num_taken_);
  num_taken_ = text_.size();
  while (!held_.empty() && (finished_ || held_.front().text_end <= text_.size())) {
    const SampledToken& token = held_.front().token;
    event.tokens.push_back(token.token_id);
    if (num_logprobs_ >= 0) event.logprobs.push_back(token.logprob);
    if (num_logprobs_ > 0) event.top_logprobs.push_back(top_logprobs_of(token));
    held_.pop_front();
  }
  if (event.text.empty() && event.tokens.empty()) return std::nullopt;
  return event;
}

}  // namespace headrace::engine
