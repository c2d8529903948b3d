// The emulated device behind cuda_runtime.h: how kernels get into its streams, and what tests set about it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "emulator/threads.h"

namespace headrace::emulator {

// Puts a launch into a stream. It runs when something waits for it.
cudaError_t enqueue_launch(cudaStream_t stream, Launch launch);

struct DeviceSettings {
  int compute_major = 9, compute_minor = 0;
  size_t memory_bytes = size_t{512} << 20;
  int multiprocessors = 4;
  int failing_allocation = 0;  // n > 0: the n-th cudaMalloc from now on fails
};
DeviceSettings& device_settings();

}  // namespace headrace::emulator
