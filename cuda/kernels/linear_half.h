// y = x W^T of float16 or bfloat16 weights and inputs of the same type, with sums in float32: the same bits for one row as for
// many.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/float_type.h"
#include "kernels/linear_output.h"

namespace headrace::cuda {

struct LinearHalfArguments {
  const uint16_t* weight = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;  // a multiple of 8
  FloatType type = FloatType::kF16;
  const uint16_t* x = nullptr;  // [num_tokens, cols]
  int64_t num_tokens = 0;
  float* workspace = nullptr;  // [linear_workspace()]
  LinearDestination to;
};
cudaError_t linear_half(const LinearHalfArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
