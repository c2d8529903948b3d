// What the handlers of a server share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine_thread.h"
#include "generation.h"
#include "router.h"
#include "served_models.h"
#include "settings.h"

namespace server {

class Sessions;

struct Context {
  const Settings& settings;
  ServedModels& models;
  Sessions& sessions;
  std::atomic<uint64_t> num_vanished = 0;  // requests whose client went before the answer was complete
  EngineThread::Post post;                 // to the I/O thread

  // Hands requests to the model's engine; see Generation::start.
  void generate(const Call& call, const ServedModel& served, const std::vector<headrace::Request>& requests,
                size_t num_samples, std::unique_ptr<AnswerFormat> format);
};

// A prefix and 24 random letters and digits.
std::string new_id(const std::string& prefix);
int64_t unix_seconds();

// The parts of the API: each adds its routes.
void add_chat(Router& router, Context& context);
void add_completions(Router& router, Context& context);
void add_responses(Router& router, Context& context);
void add_messages(Router& router, Context& context);
void add_embeddings(Router& router, Context& context);
void add_rerank(Router& router, Context& context);
void add_models(Router& router, Context& context);
void add_tokenize(Router& router, Context& context);
void add_sessions(Router& router, Context& context);
void add_operation(Router& router, Context& context);

}  // namespace server
