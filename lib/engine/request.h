// What to generate and how: the fields of one request, checked before it is queued.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "sampling/sampler.h"
#include "sampling/token_mask.h"

namespace headrace {
class Adapter;
struct EncoderInput;
}  // namespace headrace

namespace headrace::engine {

class Session;
struct RequestImage;
struct SpeechTokens;

inline constexpr uint32_t kMaxSamples = 128;

// Rows whose hidden states a request gives out, in kHidden events. They are computed anew where the cache has their prefix.
struct HiddenStatesParams {
  std::vector<int32_t> layers;                        // as HiddenTap::layers, none twice; empty: nothing is given
  int64_t begin = 0;                                  // positions [begin, end) of the request's own prompt, and of the
  int64_t end = std::numeric_limits<int64_t>::max();  // output behind it; the last token drawn is never computed
};

// Copied by submit. Names of fields are the places of errors.
struct RequestParams {
  std::vector<int32_t> prompt;  // follows the session's tokens where there is a session
  // In the order of their tokens in the prompt, which has one for each image or one for each of its rows.
  std::vector<std::shared_ptr<const RequestImage>> images;
  // What the encoder in front of the decoder reads, where the model has one. An empty prompt is the encoder's start token then.
  std::shared_ptr<const EncoderInput> encoder_input;
  SamplingParams sampling;    // its seed counts when has_seed; its num_logprobs is overwritten by num_logprobs below
  bool has_seed = false;      // otherwise a seed is drawn at each submit
  uint32_t n = 1;             // samples of the prompt
  int32_t num_logprobs = -1;  // -1: none; 0: the sampled token's; k: and the k most likely
  int32_t num_prompt_logprobs = -1;  // the same for `prompt` (a session's earlier tokens are not scored)
  HiddenStatesParams hidden_states;
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_tokens;
  int64_t min_tokens = 0;  // no end or stop token is drawn, and no stop string ends the text, before so many
  int64_t max_tokens = 0;  // 0: until the model ends or the context is full
  bool ignore_eos = false;
  bool skip_special = true;       // leave control tokens out of the text
  int64_t deadline_ms = 0;        // after submit; 0: none
  int32_t priority = 0;           // higher runs first
  std::string tenant;             // on whose behalf; "" is one like others
  std::string cache_salt;         // of what is found in and left to the prefix index
  bool zero_retention = false;    // nothing it computes outlives it (KvCache::new_sequence)
  bool reports_progress = false;  // of the prompt, by events
  // Who guesses at its tokens ahead: "off", "auto", or names with commas between; "": what scheduler.drafter says.
  std::string drafter;
  TokenMaskSource token_mask;  // which tokens may come, by the host; null: all
  // Which of those, by the makers of a model that writes down speech; null: all.
  std::shared_ptr<const SpeechTokens> speech;
  std::shared_ptr<const Adapter> adapter;  // null: none, or that of the session
  std::shared_ptr<Session> session;

  RequestParams() { sampling.temperature = 0.0f; }

  // kInvalidArgument with the field's name as place. Checks what needs neither the prompt's context nor a cache.
  Status validate(int32_t vocab_size) const;
};

}  // namespace headrace::engine
