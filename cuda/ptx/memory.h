// Loads and stores of a whole vector at once. A plain one may be split by a compiler, which changes what the emulator counts.
#pragma once

#include "device.h"

namespace headrace::cuda {

// T: 4, 8 or 16 bytes (float4, uint2, ...); the address is a multiple of its size.
template <class T>
HEADRACE_DEVICE T load_vector(const void* address) {
#if defined(__CUDACC__)
  return *static_cast<const T*>(address);
#else
  T out;
  emulator::read_memory(address, &out, sizeof(T));
  return out;
#endif
}

template <class T>
HEADRACE_DEVICE void store_vector(void* address, const T& value) {
#if defined(__CUDACC__)
  *static_cast<T*>(address) = value;
#else
  emulator::write_memory(address, &value, sizeof(T));
#endif
}

}  // namespace headrace::cuda
