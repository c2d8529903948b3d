// Attention of a batch's rows over the paged cache in float32, for every shape that the faster kernel does not take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention.h"

namespace headrace::cuda {

// layout: f32, f16 or bf16 keys and values, head_dim at most kMaxHeadDim.
struct AttentionFloatArguments : AttentionArguments {
  const int32_t* sequences = nullptr;  // [num_tokens] the sequence of each row
  int32_t chunk = 0;                   // as in PagedAttentionParams; 0: not
};
cudaError_t attention_float(const AttentionFloatArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
