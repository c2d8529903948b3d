// What this machine can do at most, measured: the yardsticks of kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace headrace {

// Float32 fused multiply-adds per second of all the pool's threads together, with this instruction set's vectors:
// chains in registers, no memory. The baseline has no fused instruction; a multiplication and an addition count as one.
double fma_peak(Isa isa, ThreadPool& pool);

// Reads memory that no cache holds. Ask for the rate right before and after what it is compared with: on a shared
// machine it varies with the neighbours.
class ReadProbe {
 public:
  explicit ReadProbe(size_t bytes) : words_(bytes / sizeof(unsigned long long), 1) {}
  // Bytes per second of one pass over the buffer, each thread reading its share.
  double pass(ThreadPool& pool) const;

 private:
  std::vector<unsigned long long> words_;
};

}  // namespace headrace
