// A block for each row, which it reads twice: for the greatest magnitude, then to round it.
#include "device.h"
#include "kernels/block_reduce.h"
#include "kernels/float_values.h"
#include "kernels/row_kernels.h"
#include "launch.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

// The power of two by which a row of this greatest magnitude is multiplied. Infinity and NaN stay what they are.
HEADRACE_DEVICE float narrowing(float most) {
  constexpr unsigned kInfinity = 0x7F800000u, kExponentOf15 = 127 + 15;
  const unsigned bits = __float_as_uint(most), exponent = bits >> 23;
  if (bits >= kInfinity || exponent < kExponentOf15) return 1.0f;
  return __uint_as_float((127 + kExponentOf15 - 1 - exponent) << 23);
}

template <FloatType kType>
__global__ void __launch_bounds__(kThreads) narrow_rows_kernel(NarrowRowsArguments a) {
  HEADRACE_SHARED_ARRAY(float, of_warp, kThreads / 32);
  const float* const x = a.x + static_cast<int64_t>(blockIdx.x) * a.size;
  uint16_t* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.size;
  float factor = 1.0f;
  if constexpr (kType == FloatType::kF16) {
    float most = 0.0f;
    for (int64_t at = 4 * static_cast<int64_t>(threadIdx.x); at < a.size; at += 4 * kThreads) {
      const float4 v = load_vector<float4>(x + at);
      most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
    }
    factor = narrowing(block_max<kThreads / 32>(most, of_warp));
  }
  if (threadIdx.x == 0) a.row_scales[blockIdx.x] = 1.0f / factor;
  for (int64_t at = 4 * static_cast<int64_t>(threadIdx.x); at < a.size; at += 4 * kThreads) {
    const float4 v = load_vector<float4>(x + at);
    store_vector(out + at, make_uint2(pack_pair<kType>(v.x * factor, v.y * factor),
                                      pack_pair<kType>(v.z * factor, v.w * factor)));
  }
}

}  // namespace

cudaError_t narrow_rows(const NarrowRowsArguments& a, cudaStream_t stream) {
  if (a.num_rows < 0 || a.size <= 0 || a.size % 4 != 0 || a.type == FloatType::kF32) return cudaErrorInvalidValue;
  if (a.num_rows == 0) return cudaSuccess;
  const LaunchShape shape{dim3(static_cast<unsigned>(a.num_rows)), kThreads, 0, stream};
  return a.type == FloatType::kF16 ? launch("narrow_rows", narrow_rows_kernel<FloatType::kF16>, shape, a)
                                   : launch("narrow_rows", narrow_rows_kernel<FloatType::kBF16>, shape, a);
}

}  // namespace headrace::cuda
