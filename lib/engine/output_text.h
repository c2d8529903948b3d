// From drawn tokens to events: text as soon as no stop string can reach into it, and the tokens that made it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/event.h"
#include "sampling/sampler.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace headrace::engine {

TopLogprobs top_logprobs_of(const SampledToken& token);

// One per sample; used by one thread at a time.
class OutputText {
 public:
  // tokenizer null: tokens only, no text. stop_strings: a fresh matcher, or none. num_logprobs as in RequestParams.
  OutputText(std::shared_ptr<const text::Tokenizer> tokenizer, bool skip_special,
             std::optional<text::StopMatcher> stop_strings, int32_t num_logprobs);

  // A token was drawn. `silent`: it ends the sample and is no text. `may_stop`: a stop string whose last character it
  // completes ends the sample; text of earlier tokens that might not stop is passed on unseen.
  void push(const SampledToken& token, bool silent, bool may_stop);
  // A stop string was found: the text ends before it.
  bool stopped() const { return stopped_; }
  // The sample ended: what is still held becomes certain. stopped() may become true by it, where a stop string was found
  // that a longer one might have replaced.
  void finish();

  // Moves what is certain into an event of type kTokens; nothing when that is nothing.
  std::optional<Event> take();
  // All text so far, held text left out.
  const std::string& text() const { return text_; }
  // The same, handed over; nothing can be taken afterwards.
  std::string release_text() {
    num_taken_ = 0;
    return std::move(text_);
  }

 private:
  struct HeldToken {
    SampledToken token;
    size_t text_end = 0;  // bytes of text, held or certain, once this token was pushed
  };
  void add(const std::string& piece, bool may_stop);

  std::optional<text::StreamingDetokenizer> detokenizer_;
  std::optional<text::StopMatcher> matcher_;
  int32_t num_logprobs_;
  bool stopped_ = false;
  bool may_stop_ = false;
  bool finished_ = false;
  std::string text_;       // certain
  size_t num_taken_ = 0;   // bytes of text_ already in events
  size_t num_pushed_ = 0;  // bytes that the detokenizer gave
  std::deque<HeldToken> held_;
};

}  // namespace headrace::engine
