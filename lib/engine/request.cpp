#include "engine/request.h"

#include "schedule/tenant.h"
#include "text/utf8.h"

namespace headrace::engine {
namespace {

Status check_ids(const std::vector<int32_t>& ids, const char* field, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return invalid_argument(fmt::format("{}[{}]", field, i), "{} is no token id; the vocabulary has {}", ids[i],
                              vocab_size);
    }
  }
  return Status();
}

Status check_logprobs(int32_t count, const char* field) {
  if (count < -1 || count > kMaxLogprobs) {
    return invalid_argument(field, "{} is not in [-1, {}]", count, kMaxLogprobs);
  }
  return Status();
}

}  // namespace

Status RequestParams::validate(int32_t vocab_size) const {
  HEADRACE_RETURN_IF_ERROR(check_ids(prompt, "prompt", vocab_size));
  HEADRACE_RETURN_IF_ERROR(check_logprobs(num_logprobs, "num_logprobs"));
  HEADRACE_RETURN_IF_ERROR(check_logprobs(num_prompt_logprobs, "num_prompt_logprobs"));
  SamplingParams checked = sampling;
  checked.num_logprobs = num_logprobs < 0 ? 0 : num_logprobs;
  HEADRACE_RETURN_IF_ERROR(checked.validate(vocab_size));
  if (n < 1 || n > kMaxSamples) return invalid_argument("n", "{} is not in [1, {}]", n, kMaxSamples);
  if (n != 1 && session) return invalid_argument("n", "{} samples cannot share one session", n);
  if (!cache_salt.empty() && session) return invalid_argument("cache_salt", "a request on a session has the session's");
  if (adapter && session) return invalid_argument("adapter", "a request on a session has the session's");
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    const std::string place = fmt::format("stop_strings[{}]", i);
    if (stop_strings[i].empty()) return invalid_argument(place, "an empty text stops everywhere");
    if (const size_t bad = text::utf8_invalid_offset(stop_strings[i]); bad != std::string::npos) {
      return invalid_argument(place, "is not UTF-8 at byte {}", bad);
    }
  }
  HEADRACE_RETURN_IF_ERROR(check_ids(stop_tokens, "stop_tokens", vocab_size));
  if (min_tokens < 0) return invalid_argument("min_tokens", "{} is negative", min_tokens);
  if (max_tokens < 0) return invalid_argument("max_tokens", "{} is negative", max_tokens);
  if (max_tokens > 0 && min_tokens > max_tokens) {
    return invalid_argument("min_tokens", "{} is more than max_tokens {}", min_tokens, max_tokens);
  }
  HEADRACE_RETURN_IF_ERROR(schedule::check_tenant_name(tenant));
  if (hidden_states.begin < 0 || (!hidden_states.layers.empty() && hidden_states.begin >= hidden_states.end)) {
    return invalid_argument("hidden_states", "[{}, {}) holds no position", hidden_states.begin, hidden_states.end);
  }
  if (deadline_ms < 0) return invalid_argument("deadline_ms", "{} is negative", deadline_ms);
  return Status();
}

}  // namespace headrace::engine
