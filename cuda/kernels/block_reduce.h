// Sums and maxima over a block in a fixed order: lanes by halves, then warps in turn.
#pragma once

#include "device.h"

namespace headrace::cuda {

HEADRACE_DEVICE float warp_sum(float value) {
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, bits);
  return value;
}
HEADRACE_DEVICE float warp_max(float value) {
  for (int bits = 16; bits > 0; bits /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, bits));
  return value;
}

// The same in each thread. of_warp [kWarps] of shared memory is free again behind the block's next barrier.
template <int kWarps>
HEADRACE_DEVICE float block_sum(float value, float* of_warp) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp];
  return sum;
}
template <int kWarps>
HEADRACE_DEVICE float block_max(float value, float* of_warp) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float most = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) most = fmaxf(most, of_warp[warp]);
  return most;
}

}  // namespace headrace::cuda
