// Tokens with their probabilities, as OpenAI's APIs write them.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <string>

#include "json.h"

namespace server {

// Adds an element for each token of the event, which has logprobs: {"token", "logprob", "bytes", "top_logprobs"}.
void add_token_logprobs(OrderedJson& content, const headrace::Tokenizer& tokenizer, const headrace::Event& event);

// The same in the older form of /v1/completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, which are
// arrays. offset counts the characters of text up to the next token.
void add_legacy_logprobs(OrderedJson& logprobs, size_t& offset, const headrace::Tokenizer& tokenizer,
                         const headrace::Event& event);

}  // namespace server
