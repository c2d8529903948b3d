// Elementwise, a value for each thread, in place.
#include "device.h"
#include "kernels/row_kernels.h"
#include "launch.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

HEADRACE_DEVICE int64_t element() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) add_kernel(const float* x, float* out, int64_t count) {
  const int64_t i = element();
  if (i < count) out[i] += x[i];
}

__global__ void __launch_bounds__(kThreads)
    scale_kernel(float* x, int64_t count, float factor, const float* columns, int64_t num_columns) {
  const int64_t i = element();
  if (i < count) x[i] *= columns == nullptr ? factor : factor * columns[i % num_columns];
}

__global__ void __launch_bounds__(kThreads) softcap_kernel(float* x, int64_t count, float cap) {
  const int64_t i = element();
  if (i < count) x[i] = cap * tanhf(x[i] / cap);
}

LaunchShape shape_of(int64_t count, cudaStream_t stream) {
  return {dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), kThreads, 0, stream};
}

}  // namespace

cudaError_t add(const float* x, float* out, int64_t count, cudaStream_t stream) {
  if (count <= 0) return count == 0 ? cudaSuccess : cudaErrorInvalidValue;
  return launch("add", add_kernel, shape_of(count, stream), x, out, count);
}

cudaError_t scale(float* x, int64_t count, float factor, const float* columns, int64_t num_columns,
                  cudaStream_t stream) {
  if (count <= 0) return count == 0 ? cudaSuccess : cudaErrorInvalidValue;
  return launch("scale", scale_kernel, shape_of(count, stream), x, count, factor, columns, num_columns);
}

cudaError_t softcap(float* x, int64_t count, float cap, cudaStream_t stream) {
  if (count <= 0) return count == 0 ? cudaSuccess : cudaErrorInvalidValue;
  return launch("softcap", softcap_kernel, shape_of(count, stream), x, count, cap);
}

}  // namespace headrace::cuda
