// What the models of one program share: threads, who computes next, and memory.
#pragma once

#include <memory>
#include <vector>

#include "base/memory_budget.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "base/turn_queue.h"
#include "engine/engine_options.h"

namespace headrace::engine {

// Immutable; each part has its own thread rule, and threads belong to who has a turn.
struct Runtime {
  std::shared_ptr<ThreadPool> threads;
  std::vector<int> processors;  // that they are bound to; empty: they are not
  std::shared_ptr<TurnQueue> turns;
  std::shared_ptr<MemoryBudget> memory;

  // Reads "engine.threads", "engine.affinity" and "runtime.*". Fails as make_backend does for the first two.
  static Result<std::shared_ptr<const Runtime>> create(const EngineOptions& options);
};

// The number of threads that the options ask for; kInvalidArgument or kUnsupported with "engine.affinity" as place.
Result<int> thread_count(const EngineOptions& options);

// kInvalidArgument with the key as place where the options ask for other threads than their runtime's.
Status check_runtime_threads(const EngineOptions& options);

}  // namespace headrace::engine
