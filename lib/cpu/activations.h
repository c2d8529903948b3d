// Rows of activations quantized once for all products of a linear op.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "cpu/kernel_table.h"
#include "ops/backend.h"

namespace headrace {

// Storage is kept between calls.
struct ActivationRows {
  ActivationType type = ActivationType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
};

// Quantizes x [rows, cols] to `type` (kInt8 or kInt16), each row by itself.
void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out);

}  // namespace headrace
