// y = x W^T of float32 weights and inputs: the same bits for one row as for many.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/linear_output.h"

namespace headrace::cuda {

struct LinearFloatArguments {
  const float* weight = nullptr;  // [rows, cols]
  int64_t rows = 0, cols = 0;
  const float* x = nullptr;  // [num_tokens, cols]
  int64_t num_tokens = 0;
  LinearDestination to;
};
cudaError_t linear_float(const LinearFloatArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
