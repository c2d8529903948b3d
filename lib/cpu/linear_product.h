// Products of packed weights in one loop over the thread pool.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_weight.h"

namespace headrace {

struct LinearProduct {
  const CpuPackedWeight* weight = nullptr;
  LinearInput input;
  LinearOutput output;
  int64_t end_task = 0;  // for run_products
};

// Computes all of them: their tasks share one loop, so that threads wait for each other once.
void run_products(std::span<LinearProduct> products, ThreadPool& pool, const KernelTable& kernels);

}  // namespace headrace
