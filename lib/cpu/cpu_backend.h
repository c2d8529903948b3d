// The CPU backend: kernels of one instruction set over one thread pool.
#pragma once

#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "ops/backend.h"

namespace headrace {

struct CpuBackendOptions {
  Isa isa = kWeakestIsa;  // must be available
  int num_threads = 1;
  std::vector<int> processors = {};  // that threads are bound to, as ThreadPool takes them
};

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace headrace
