// The fields of a body that say how to draw, wherever an API has them under the same name.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "context.h"
#include "json.h"

namespace server {

// The value of a field, or `otherwise` where it is absent or null. The schema has checked type and range.
int64_t integer_field(const Json& body, const char* name, int64_t otherwise);
double number_field(const Json& body, const char* name, double otherwise);
bool flag_field(const Json& body, const char* name, bool otherwise);
std::string text_field(const Json& body, const char* name, const std::string& otherwise);
// Null where it is absent or null.
const Json* find_field(const Json& body, const char* name);
// A string or an array of strings.
std::vector<std::string> strings_field(const Json& body, const char* name);

struct Draw {
  headrace::Sampling sampling;
  int64_t min_tokens = 0, max_tokens = 0;  // max_tokens 0: as many as fit
  std::vector<std::string> stop;
};

// temperature, top_p, top_k, min_p, typical_p, repetition_penalty, frequency_penalty, presence_penalty, seed, n, stop and
// min_tokens of the body; what is not there is what the model recommends. Lengths and logprobs are the API's own.
Draw read_draw(const Json& body, const ServedModel& served);

// What the caller's prompts are found under in the cache: tenants share nothing, and "cache_salt" of the body sets apart within
// one.
std::string cache_salt_of(const Call& call);

// A request to the model that has these, and logit_bias, stop_token_ids, ignore_eos, priority, drafter and deadline_ms of the
// body, the adapter that was chosen, and the caller's tenant. Its prompt is still to be added.
headrace::Request make_request(const Call& call, const Context& context, const ServedModels::Choice& choice,
                               const Draw& draw);

}  // namespace server
