// A warp for each row of the weight and eight tokens. Lane l adds up the products of columns l, l + 32, ...; then the lanes'
// sums are added by halves.
#include "kernels/linear_float.h"

#include "device.h"
#include "kernels/block_reduce.h"
#include "kernels/linear_store.h"
#include "launch.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTokens = 8;

__global__ void __launch_bounds__(kThreads) linear_float_kernel(LinearFloatArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), a.num_tokens - first));
  const float* const weight = a.weight + row * a.cols;
  const float* const x = a.x + first * a.cols;
  float sums[kTokens] = {};
  for (int64_t k = lane; k < a.cols; k += 32) {
    const float w = weight[k];
    HEADRACE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens) sums[t] += w * x[t * a.cols + k];
    }
  }
  HEADRACE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    if (t >= tokens) continue;
    const float sum = warp_sum(sums[t]);
    if (lane == 0) store_product(a.to, first + t, row, sum);
  }
}

}  // namespace

cudaError_t linear_float(const LinearFloatArguments& a, cudaStream_t stream) {
  if (a.rows <= 0 || a.cols <= 0 || a.num_tokens < 0) return cudaErrorInvalidValue;
  if (a.num_tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((a.rows + kWarps - 1) / kWarps),
                  static_cast<unsigned>((a.num_tokens + kTokens - 1) / kTokens));
  return launch("linear_float", linear_float_kernel, {grid, kThreads, 0, stream}, a);
}

}  // namespace headrace::cuda
