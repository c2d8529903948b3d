// The 32-bit address that instructions on shared memory take.
#pragma once

#include "device.h"

#if defined(__CUDACC__)
namespace headrace::cuda {
HEADRACE_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
}  // namespace headrace::cuda
#endif
