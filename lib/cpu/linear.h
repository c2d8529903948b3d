// The linear ops: rows of activations brought into the form that their weights want, and products in one loop.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "cpu/activations.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernel_table.h"
#include "cpu/linear_product.h"
#include "cpu/ordered_activations.h"
#include "ops/backend.h"

namespace headrace {

// Keeps its buffers between calls. Thread rule: that of the backend that owns it. Both throw std::bad_alloc.
class CpuLinear {
 public:
  void run(const LinearParams& params, ThreadPool& pool, const KernelTable& kernels);
  void run(const GatedLinearParams& params, ThreadPool& pool, const KernelTable& kernels);

 private:
  // What has been made of the rows of one op.
  struct Rows {
    const float* x = nullptr;
    int64_t num_tokens = 0;
    int64_t in_features = 0;
    bool tiles = false, int8 = false, int16 = false;
  };

  LinearInput input_of(const CpuPackedWeight& weight, Rows& rows, ThreadPool& pool, const KernelTable& kernels);
  const ActivationRows* quantized(ActivationType type, Rows& rows, ThreadPool& pool, const KernelTable& kernels);
  void run_in_two(const GatedLinearParams& params, ThreadPool& pool, const KernelTable& kernels);

  AlignedBuffer tiles_, up_;
  ActivationRows int8_rows_, int16_rows_;
  OrderedActivations ordered_;
  std::vector<const float*> row_pointers_;
  std::vector<LinearProduct> products_;
};

}  // namespace headrace
