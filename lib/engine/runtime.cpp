#include "engine/runtime.h"

#include <chrono>
#include <system_error>

#include "base/cpu_features.h"
#include "base/processor_list.h"

namespace headrace::engine {

Result<int> thread_count(const EngineOptions& options) {
  if (const Status status = check_processors(options.affinity); !status.ok()) {
    return Status(status.code(), status.message(), "engine.affinity");
  }
  if (options.threads > 0) return options.threads;
  return options.affinity.empty() ? usable_processors() : static_cast<int>(options.affinity.size());
}

Result<std::shared_ptr<const Runtime>> Runtime::create(const EngineOptions& options) {
  if (options.runtime != nullptr) return invalid_argument("options", "are a runtime's already");
  HEADRACE_ASSIGN_OR_RETURN(const int num_threads, thread_count(options));
  auto runtime = std::make_shared<Runtime>();
  try {
    runtime->threads = std::make_shared<ThreadPool>(num_threads, options.affinity);
  } catch (const std::system_error& error) {
    return out_of_memory("engine.threads", "{} threads could not be started: {}", num_threads, error.what());
  }
  runtime->processors = options.affinity;
  runtime->turns = std::make_shared<TurnQueue>(
      TurnPolicy{options.runtime_max_overtakes, std::chrono::microseconds(options.runtime_patience_us)});
  runtime->memory = std::make_shared<MemoryBudget>(static_cast<uint64_t>(options.runtime_max_bytes));
  return std::shared_ptr<const Runtime>(std::move(runtime));
}

Status check_runtime_threads(const EngineOptions& options) {
  const Runtime& runtime = *options.runtime;
  if (options.threads > 0 && options.threads != runtime.threads->num_threads()) {
    return invalid_argument("engine.threads", "{} are not the {} of the runtime", options.threads,
                            runtime.threads->num_threads());
  }
  if (!options.affinity.empty() && options.affinity != runtime.processors) {
    return invalid_argument("engine.affinity", "is not that of the runtime");
  }
  return Status();
}

}  // namespace headrace::engine
