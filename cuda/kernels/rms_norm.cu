// A block for each row, which stays in registers between the sum of squares and the product: every byte is moved once.
#include "device.h"
#include "kernels/block_reduce.h"
#include "kernels/row_kernels.h"
#include "launch.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

// kVectors: of four values, for each thread.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArguments a) {
  HEADRACE_SHARED_ARRAY(float, of_warp, kThreads / 32);
  float4 values[kVectors];
  const int size = static_cast<int>(a.size);
  float* const row = a.x + static_cast<int64_t>(blockIdx.x) * a.size;
  const float* const delta = a.delta == nullptr ? nullptr : a.delta + static_cast<int64_t>(blockIdx.x) * a.size;
  float squares = 0.0f;
  HEADRACE_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
    if (at >= size) continue;
    float4 x = load_vector<float4>(row + at);
    if (delta != nullptr) {
      const float4 d = load_vector<float4>(delta + at);
      x.x += d.x;
      x.y += d.y;
      x.z += d.z;
      x.w += d.w;
      store_vector(row + at, x);
    }
    squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    values[i] = x;
  }
  const float factor = 1.0f / sqrtf(block_sum<kThreads / 32>(squares, of_warp) / static_cast<float>(a.size) + a.eps);
  float* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.size;
  HEADRACE_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
    if (at >= size) continue;
    const float4 x = values[i], weight = load_vector<float4>(a.weight + at);
    store_vector(out + at,
                 make_float4(x.x * factor * (weight.x + a.weight_offset), x.y * factor * (weight.y + a.weight_offset),
                             x.z * factor * (weight.z + a.weight_offset), x.w * factor * (weight.w + a.weight_offset)));
  }
}

}  // namespace

cudaError_t rms_norm(const RmsNormArguments& a, cudaStream_t stream) {
  if (a.size <= 0 || a.size % 4 != 0 || a.size > kMaxRmsNormSize || a.num_tokens < 0) return cudaErrorInvalidValue;
  if (a.num_tokens == 0) return cudaSuccess;
  const LaunchShape shape{dim3(static_cast<unsigned>(a.num_tokens)), kThreads, 0, stream};
  // The number of vectors changes nothing in a row's arithmetic: those past its end are left out.
  if (a.size <= 1024) return launch("rms_norm", rms_norm_kernel<1>, shape, a);
  if (a.size <= 4096) return launch("rms_norm", rms_norm_kernel<4>, shape, a);
  return launch("rms_norm", rms_norm_kernel<16>, shape, a);
}

}  // namespace headrace::cuda
