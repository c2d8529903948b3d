// The choice of positions for sparse attention over the thread pool.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernel_table.h"
#include "ops/top_positions.h"
#include "tensor/op_params.h"

namespace headrace {

// Keeps its scratch between calls. Thread rule: that of the backend that owns it.
class CpuIndexer {
 public:
  void run(const SelectPositionsParams& params, ThreadPool& pool, const KernelTable& kernels);

 private:
  // Of a thread, where keys are rows: where those of a span lie, and room to widen some.
  struct Listed {
    std::vector<const uint8_t*> rows, scales;
    AlignedBuffer widened;
  };
  static void list_rows(const SelectPositionsParams& params, Listed& listed, IndexSpan& span);
  void run_rows(const SelectPositionsParams& params, int64_t first, int64_t count, int64_t stride, ThreadPool& pool,
                const KernelTable& kernels);

  AlignedBuffer queries_;  // of a group of rows, in the kernel's order
  AlignedBuffer scores_;   // likewise, [rows][stride]
  std::vector<TopPositions> tops_;
  std::vector<Listed> listed_;
  std::vector<int32_t> sequences_;  // of each row
};

}  // namespace headrace
