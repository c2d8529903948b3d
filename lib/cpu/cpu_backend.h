// The CPU backend: kernels of one instruction set over one thread pool.
#pragma once

#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/tuning_table.h"
#include "ops/backend.h"

namespace headrace {

struct CpuBackendOptions {
  Isa isa = kWeakestIsa;  // must be available
  int num_threads = 1;
  std::vector<int> processors = {};  // that threads are bound to, as ThreadPool takes them
  // How products are computed; null: by rules. Must be of this processor and instruction set.
  std::shared_ptr<const TuningTable> tuning = nullptr;
};

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace headrace
