// Starts a kernel: through the CUDA runtime, or in the emulator's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

#if !defined(__CUDACC__)
#include "emulator/runtime.h"
#endif

namespace headrace::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
  bool cooperative = false;  // all blocks run at once, and may wait for each other
};

#if !defined(__CUDACC__)
template <class... Parameters>
class BoundCall final : public emulator::KernelCall {
 public:
  BoundCall(void (*kernel)(Parameters...), std::tuple<Parameters...> arguments)
      : kernel_(kernel), arguments_(std::move(arguments)) {}
  void run() const override { call(std::index_sequence_for<Parameters...>{}); }

 private:
  // Arguments reach each thread's own stack here, which is no business of the kernel's: not instrumented.
  template <size_t... kIndex>
  __attribute__((no_sanitize("thread"))) void call(std::index_sequence<kIndex...>) const {
    kernel_(std::get<kIndex>(arguments_)...);
  }

  void (*kernel_)(Parameters...);
  std::tuple<Parameters...> arguments_;
};
#endif

// Arguments are copied, so pointers in them must stay good until the kernel has run. `name` stands in the emulator's
// reports.
template <class... Parameters, class... Arguments>
cudaError_t launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
                   Arguments&&... arguments) {
  constexpr size_t kSharedBytesUnasked = 48 << 10;
  if (shape.shared_bytes > kSharedBytesUnasked) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return error;
  }
#if defined(__CUDACC__)
  static_cast<void>(name);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeCooperative;
  attribute[0].val.cooperative = shape.cooperative ? 1 : 0;
  config.attrs = attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...);
#else
  emulator::Launch out{
      name,   reinterpret_cast<const void*>(kernel), shape.grid, shape.block, shape.shared_bytes, shape.cooperative,
      nullptr};
  out.call = std::make_shared<const BoundCall<Parameters...> >(
      kernel, std::tuple<Parameters...>(static_cast<Parameters>(std::forward<Arguments>(arguments))...));
  return emulator::enqueue_launch(shape.stream, std::move(out));
#endif
}

}  // namespace headrace::cuda
