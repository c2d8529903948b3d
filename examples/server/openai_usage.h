// What the answers of /v1/chat/completions and /v1/completions have in common.
#pragma once

#include <utility>

#include "api_error.h"
#include "exchange.h"
#include "generation.h"
#include "json.h"
#include "sse.h"

namespace server {

inline OrderedJson openai_usage(const TokenUsage& usage) {
  OrderedJson details = {{"cached_tokens", usage.cached_tokens}};
  if (!usage.reuse_miss.empty()) details["reuse_miss"] = usage.reuse_miss;
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.output_tokens},
          {"total_tokens", usage.prompt_tokens + usage.output_tokens},
          {"prompt_tokens_details", std::move(details)}};
}

// In a stream that has begun the official clients raise what an event with "error" says.
inline void fail_openai(Exchange& exchange, bool is_stream, const ApiError& error) {
  if (!is_stream) return exchange.reply(error_reply(error, ErrorShape::kOpenAi));
  exchange.write(format_event(dump(error_body(error, ErrorShape::kOpenAi))));
  exchange.write(kDoneEvent);
  exchange.end_stream();
}

}  // namespace server
