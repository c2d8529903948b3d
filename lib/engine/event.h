// What a scheduler tells its host, in order for each sample of each request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "speculation/speculation_counts.h"

namespace headrace::engine {

enum class EventType : int32_t {
  kTokens = 1,    // text and tokens that are certain
  kPrompt = 2,    // prompt logprobs, once, before the first tokens
  kFinished = 3,  // a sample ended; carries no text or tokens
  kFailed = 4,    // the whole request failed
  kHidden = 5,    // hidden states of the next rows of a sample that were asked for
  kProgress = 6,  // more of the prompt is computed; before the first tokens, of requests that ask for it
};

enum class FinishReason : int32_t { kNone = 0, kStop, kLength, kCancelled, kDeadline };

// "", "stop", "length", "cancelled", "deadline".
const char* finish_reason_name(FinishReason reason);

// Why no more of a prompt was found in the cache.
enum class ReuseMiss : int32_t {
  kNone = 0,        // all was that can be: the last token is computed always
  kShort,           // less than a block is left
  kUnseen,          // no prompt had these tokens here, with this salt and adapter
  kEvicted,         // one had, and its block gave way
  kNoSnapshot,      // no recurrent state was kept there
  kPromptLogprobs,  // the rows are needed
  kHiddenStates,    // likewise
  kIndexOff,
  kNotScheduled,
};

// "", "short", "unseen", "evicted", "no_snapshot", "prompt_logprobs", "hidden_states", "index_off", "not_scheduled".
const char* reuse_miss_name(ReuseMiss miss);

struct Usage {
  int64_t prompt_tokens = 0;   // a session's earlier tokens included
  int64_t cached_tokens = 0;   // of the prompt, found in the prefix index or the session
  int64_t output_tokens = 0;   // of this sample
  int64_t queue_ns = 0;        // submit to first scheduled
  int64_t first_token_ns = 0;  // submit to this sample's first token
  int64_t total_ns = 0;        // submit to this event
  ReuseMiss reuse_miss = ReuseMiss::kNone;
  speculation::SpeculationCounts speculation;  // of this sample
};

// Of a prompt: `computed` tokens of `total` have their values now, the `cached` ones that were found among them.
struct PromptProgress {
  int64_t total = 0;
  int64_t cached = 0;
  int64_t computed = 0;
};

// The most likely tokens at one place, most likely first.
struct TopLogprobs {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
};

// Of rows that follow each other in one sample.
struct HiddenStates {
  std::vector<int32_t> layers;  // as asked for
  int64_t first_position = 0;   // in the sample's sequence, a session's tokens included
  int64_t num_rows = 0, hidden_size = 0;
  std::vector<float> values;  // [layers, num_rows, hidden_size]
};

// Over the kTokens events of one sample: `text` concatenates to its whole output, cut before a stop string; `tokens` are
// all ids drawn, those of a stop string and the end token included (they come with the last such event).
struct Event {
  EventType type = EventType::kTokens;
  uint64_t number = 0;  // of all events of a scheduler, in their order
  uint64_t request_id = 0;
  uint32_t index = 0;    // which of the n samples
  bool is_last = false;  // terminal for the request: exactly one event has it
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;            // one per token, or empty where none were asked for
  std::vector<TopLogprobs> top_logprobs;  // one per token, or empty where no alternatives were asked for
  FinishReason finish_reason = FinishReason::kNone;
  Status status;                               // of kFailed
  Usage usage;                                 // of kFinished
  std::shared_ptr<const HiddenStates> hidden;  // of kHidden
  PromptProgress progress;                     // of kProgress
};

}  // namespace headrace::engine
