// Paged attention over the thread pool: cuts the batch into tiles of rows and splits of positions for the kernel.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernel_table.h"
#include "tensor/op_params.h"

namespace headrace {

// Keeps its scratch between calls. Thread rule: that of the backend that owns it.
class CpuAttention {
 public:
  void run(const PagedAttentionParams& params, ThreadPool& pool, const KernelTable& kernels);

 private:
  std::vector<AlignedBuffer> thread_scratch_;
  AlignedBuffer partials_, between_;
  AlignedBuffer bias_;  // biases by position, written out
};

}  // namespace headrace
