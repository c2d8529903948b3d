// The requests of one HTTP request, from the engine's queue to the last byte of the answer.
#pragma once

#include <headrace/headrace.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api_error.h"
#include "engine_thread.h"
#include "exchange.h"

namespace server {

struct TokenUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string
      reuse_miss;  // why no more was cached, of the first request that says so; see headrace_event_get_reuse_miss
};

// What one API makes of a generation. Called on the I/O thread, in this order: begin, then progress,
// tokens and finish of each choice, then done; or fail at any place, after which nothing comes.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  // Every request is in the queue: what is wrong with the request would have been said by now.
  virtual void begin() = 0;
  virtual void tokens(size_t choice, const headrace::Event& event) = 0;
  // More of the prompt is computed, of requests with headrace_request_set_progress. choice: the first of the prompt's.
  virtual void progress(size_t /*choice*/, const headrace_prompt_progress& /*progress*/) {}
  // reason: "stop" or "length".
  virtual void finish(size_t choice, const std::string& reason) = 0;
  virtual void done(const TokenUsage& usage) = 0;
  virtual void fail(const ApiError& error) = 0;
};

class Generation : public EventSink, public std::enable_shared_from_this<Generation> {
 public:
  using Post = EngineThread::Post;

  // Submits the requests, of num_samples each; choice i * num_samples + j is sample j of request i. Throws as submit does,
  // and then nothing runs. The client's going cancels what runs,
  // and is counted. Thread rule: any thread.
  static void start(EngineThread& engine, const Post& post, std::atomic<uint64_t>& num_vanished,
                    std::shared_ptr<Exchange> exchange, const std::vector<headrace::Request>& requests,
                    size_t num_samples, std::unique_ptr<AnswerFormat> format);

  Generation(EngineThread& engine, std::atomic<uint64_t>& num_vanished, std::shared_ptr<Exchange> exchange,
             size_t num_requests, size_t num_samples, std::unique_ptr<AnswerFormat> format);
  void on_event(size_t slot, const headrace::Event* event) override;

 private:
  void on_finished(size_t slot, const headrace::Event& event);
  void fail(const ApiError& error);
  void cancel();

  EngineThread& engine_;
  std::atomic<uint64_t>& num_vanished_;
  const std::shared_ptr<Exchange> exchange_;
  const size_t num_samples_;
  const std::unique_ptr<AnswerFormat> format_;
  std::vector<uint64_t> ids_;
  size_t num_open_;
  TokenUsage usage_;
  bool is_over_ = false;
};

}  // namespace server
