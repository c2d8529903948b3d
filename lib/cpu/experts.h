// Mixtures of experts over the thread pool: rows are grouped by expert, and only experts with rows are read.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "cpu/grouped_linear.h"
#include "cpu/kernel_table.h"
#include "tensor/router_params.h"

namespace headrace {

// Keeps its buffers between calls. Thread rule: that of the backend that owns it.
class CpuExperts {
 public:
  void run(const ExpertsParams& params, ThreadPool& pool, const KernelTable& kernels);
  void run(const HeadLinearParams& params, ThreadPool& pool, const KernelTable& kernels);

 private:
  void group_rows(const ExpertsParams& params);

  GroupedLinear products_;
  std::vector<int32_t> used_;       // experts with rows, ascending
  std::vector<int64_t> starts_;     // [used + 1] first row of each in their order
  std::vector<int64_t> place_;      // [num_tokens, top_k] row of a visit in that order
  std::vector<int64_t> visits_;     // the other way round: token * top_k + i of each row
  std::vector<const float*> rows_;  // inputs of the rows
  std::vector<GroupProduct> list_;
  AlignedBuffer weighted_, gate_, up_, down_;
};

}  // namespace headrace
