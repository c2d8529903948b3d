// What a session does where a request would exceed its context.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace headrace::engine {

struct SessionMessage {
  std::string role;
  std::string content;     // a text, or a JSON array of parts
  bool has_parts = false;  // the latter
  size_t num_images = 0;   // among them
};

struct SessionOverflow {
  enum class Kind : int32_t {
    kRefuse,     // the request fails with the counts
    kDrop,       // what comes behind the kept front goes, the oldest first
    kSummarize,  // likewise, and a summary takes its place
  };
  // Of a conversation messages, else tokens.
  struct Part {
    std::vector<SessionMessage> messages;
    std::vector<int32_t> tokens;
  };

  Kind kind = Kind::kRefuse;
  int64_t keep_first = 0;   // messages, or tokens, that stay in front
  int64_t free_tokens = 0;  // of the context that are free afterwards, as far as that can be had; 0: half of them
  // Of kSummarize: what takes the place of what goes. Called without a lock, while the session is busy.
  std::function<Result<Part>(const Part& dropped)> summarize;
};

// Of a session since it was made.
struct SessionDropped {
  int64_t times = 0;     // that its context was exceeded
  int64_t messages = 0;  // that went
  int64_t tokens = 0;    // likewise, of sessions without messages
};

// Tokens that a request on a session may draw.
struct SessionOutput {
  int64_t least = 1;
  int64_t most = 0;  // 0: as many as fit
};

}  // namespace headrace::engine
