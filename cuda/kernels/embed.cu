// Gathers rows of a table, a block for each token.
#include "device.h"
#include "kernels/float_values.h"
#include "kernels/linear_q8_0.h"
#include "kernels/row_kernels.h"
#include "launch.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

template <FloatType kType>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArguments a) {
  const int64_t row = a.token_ids[blockIdx.x] * a.size;
  float* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.size;
  for (int64_t i = threadIdx.x; i < a.size; i += kThreads) out[i] = a.scale * load_float<kType>(a.table, row + i);
}

__global__ void __launch_bounds__(kThreads) embed_q8_0_kernel(EmbedQ8Arguments a) {
  const int64_t row = a.token_ids[blockIdx.x], steps = a.table.cols / 32;
  float* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.table.cols;
  for (int64_t i = threadIdx.x; i < a.table.cols; i += kThreads) {
    const float scale = half_bits_to_float(a.table.scales[(row / 16 * steps + i / 32) * 16 + row % 16]);
    out[i] = a.scale * (scale * static_cast<float>(a.table.codes[q8_code_at(a.table.cols, row, i)] - 128));
  }
}

}  // namespace

cudaError_t embed_q8_0(const EmbedQ8Arguments& a, cudaStream_t stream) {
  if (a.table.cols <= 0 || a.table.cols % 32 != 0 || a.num_tokens < 0) return cudaErrorInvalidValue;
  if (a.num_tokens == 0) return cudaSuccess;
  return launch("embed_q8_0", embed_q8_0_kernel, {dim3(static_cast<unsigned>(a.num_tokens)), kThreads, 0, stream}, a);
}

cudaError_t embed(const EmbedArguments& a, cudaStream_t stream) {
  if (a.size <= 0 || a.num_tokens < 0) return cudaErrorInvalidValue;
  if (a.num_tokens == 0) return cudaSuccess;
  const LaunchShape shape{dim3(static_cast<unsigned>(a.num_tokens)), kThreads, 0, stream};
  switch (a.type) {
    case FloatType::kF32: return launch("embed", embed_kernel<FloatType::kF32>, shape, a);
    case FloatType::kF16: return launch("embed", embed_kernel<FloatType::kF16>, shape, a);
    case FloatType::kBF16: return launch("embed", embed_kernel<FloatType::kBF16>, shape, a);
  }
  return cudaErrorInvalidValue;
}

}  // namespace headrace::cuda
