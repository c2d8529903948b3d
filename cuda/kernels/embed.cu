// Gathers rows of a float16 table, a block for each token.
#include "device.h"
#include "kernels/row_kernels.h"
#include "launch.h"
#include "ptx/half.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArguments a) {
  const uint16_t* const row = a.table + a.token_ids[blockIdx.x] * a.size;
  float* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.size;
  for (int64_t at = 4 * static_cast<int64_t>(threadIdx.x); at < a.size; at += 4 * kThreads) {
    const uint2 halves = load_vector<uint2>(row + at);
    store_vector(out + at, make_float4(a.scale * low_half_to_float(halves.x), a.scale * high_half_to_float(halves.x),
                                       a.scale * low_half_to_float(halves.y), a.scale * high_half_to_float(halves.y)));
  }
}

}  // namespace

cudaError_t embed(const EmbedArguments& a, cudaStream_t stream) {
  if (a.size <= 0 || a.size % 4 != 0 || a.num_tokens < 0) return cudaErrorInvalidValue;
  if (a.num_tokens == 0) return cudaSuccess;
  return launch("embed", embed_kernel, {dim3(static_cast<unsigned>(a.num_tokens)), kThreads, 0, stream}, a);
}

}  // namespace headrace::cuda
