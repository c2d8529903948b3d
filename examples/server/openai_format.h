// What the answers of /v1/chat/completions and /v1/completions have in common.
#pragma once

#include <headrace/headrace.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "exchange.h"
#include "generation.h"
#include "json.h"

namespace server {

struct OpenAiOptions {
  bool is_stream = false, has_usage_chunk = false, has_progress = false, has_logprobs = false;
  std::string model;  // as the answer names it
  size_t num_choices = 1;
};

// "stream", "stream_options" and "return_progress" of a body. Throws ApiError for those of streams where there is none.
OpenAiOptions read_openai_options(const Json& body, const std::string& model);

// A whole answer, or a stream of chunks: choices, then usage where it is asked for, then "[DONE]".
class OpenAiFormat : public AnswerFormat {
 public:
  // A chunk with a choice that says nothing and, beside it, "prompt_progress" as llama.cpp's server has it.
  void progress(size_t choice, const headrace_prompt_progress& progress) override;
  void done(const TokenUsage& usage) override;
  // In a stream that has begun the official clients raise what an event with "error" says.
  void fail(const ApiError& error) override;

 protected:
  // What "object" says of an answer and of a chunk.
  struct Objects {
    const char *whole, *chunk;
  };
  OpenAiFormat(std::shared_ptr<Exchange> exchange, OpenAiOptions options, const std::string& id_prefix,
               Objects objects);

  // The choice as it stands in a whole answer; what it holds may be moved.
  virtual OrderedJson take_choice(size_t choice) = 0;
  // One of a chunk that adds nothing to it.
  virtual OrderedJson empty_choice(size_t choice) const = 0;
  // A chunk of one choice.
  void send_choice(OrderedJson choice);

  const std::shared_ptr<Exchange> exchange_;
  const OpenAiOptions options_;

 private:
  OrderedJson head(const char* object) const;
  void send_chunk(OrderedJson choices, OrderedJson fields);

  const Objects objects_;
  const std::string id_;
  const int64_t created_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace server
