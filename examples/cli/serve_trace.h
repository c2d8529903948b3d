// What `bench --serve` replays: requests of conversations, when they come, and whose they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cli {

// A turn of a conversation. Its prompt is all that the conversation has so far, outputs too, and new tokens; the first one's
// begins with `shared_tokens` tokens that all conversations with the same `shared` have in common.
struct TraceRequest {
  double arrival = 0;  // seconds from the start, at the earliest
  double delay = 0;    // seconds after the conversation's turn before ended
  std::string conversation, group = "request", tenant, shared;
  int shared_tokens = 0, prompt_tokens = 1, output_tokens = 1;
};

// "coding-agent": few conversations whose prompts grow by what tools return; "chat": short turns under a common system
// prompt; "documents": long prompts, short answers; "tenants": chat of one tenant beside a burst of another. `turns` requests,
// `rate` conversations a second. The same for the same numbers. Empty for another name.
std::vector<TraceRequest> synthetic_trace(const std::string& name, int turns, double rate);

// One JSON object a line, with the members above; "class" is `group`. Turns of a conversation come in order; a line without
// one is a conversation of its own. Throws headrace::Error with the line and member as place.
std::vector<TraceRequest> read_trace(const std::string& path);

}  // namespace cli
