#include "device.h"
#include "kernels/linear_store.h"
#include "launch.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    add_splits_kernel(const float* parts, int splits, int64_t num_tokens, int64_t rows, LinearDestination to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, size = num_tokens * rows;
  if (i >= size) return;
  float sum = parts[i];
  for (int split = 1; split < splits; ++split) sum += parts[split * size + i];
  store_product(to, i / rows, i % rows, sum);
}

}  // namespace

int linear_splits(int64_t rows, int64_t cols) {
  // At least some 128 blocks, and 512 columns to each: fewer and the sums cost more than they bring.
  int splits = 1;
  while (splits < 16 && (rows + kLinearRows - 1) / kLinearRows * splits < 128 && cols / (2 * splits) >= 512) {
    splits *= 2;
  }
  return splits;
}

size_t linear_workspace(int64_t rows, int64_t cols, int64_t num_tokens) {
  const int splits = linear_splits(rows, cols);
  return splits == 1 ? 0 : static_cast<size_t>(splits) * static_cast<size_t>(num_tokens * rows);
}

cudaError_t add_splits(const float* parts, int splits, int64_t num_tokens, int64_t rows, const LinearDestination& to,
                       cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((num_tokens * rows + kThreads - 1) / kThreads);
  return launch("add_splits", add_splits_kernel, {dim3(blocks), kThreads, 0, stream}, parts, splits, num_tokens, rows,
                to);
}

}  // namespace headrace::cuda
