// The CPU backend: kernels of one instruction set over a thread pool, its own or one that is shared.
#pragma once

#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "base/turn_queue.h"
#include "cpu/tuning_table.h"
#include "ops/backend.h"

namespace headrace {

struct CpuBackendOptions {
  Isa isa = kWeakestIsa;  // must be available
  int num_threads = 1;
  std::vector<int> processors = {};  // that threads are bound to, as ThreadPool takes them
  // Threads shared with others, in place of num_threads and processors of its own. Who calls the backend has them for the
  // time of the call; pack takes a turn for it. Null: none.
  std::shared_ptr<ThreadPool> shared_threads = nullptr;
  std::shared_ptr<Turn> pack_turn = nullptr;
  // How products are computed; null: by rules. Must be of this processor and instruction set.
  std::shared_ptr<const TuningTable> tuning = nullptr;
};

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace headrace
