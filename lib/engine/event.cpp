#include "engine/event.h"

namespace headrace::engine {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDeadline: return "deadline";
  }
  return "";
}

const char* reuse_miss_name(ReuseMiss miss) {
  switch (miss) {
    case ReuseMiss::kNone: return "";
    case ReuseMiss::kShort: return "short";
    case ReuseMiss::kUnseen: return "unseen";
    case ReuseMiss::kEvicted: return "evicted";
    case ReuseMiss::kNoSnapshot: return "no_snapshot";
    case ReuseMiss::kPromptLogprobs: return "prompt_logprobs";
    case ReuseMiss::kHiddenStates: return "hidden_states";
    case ReuseMiss::kIndexOff: return "index_off";
    case ReuseMiss::kNotScheduled: return "not_scheduled";
  }
  return "";
}

}  // namespace headrace::engine
