// What every kernel includes first: CUDA C++ from nvcc, or from the emulator when a C++ compiler reads the same source.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)

#define HEADRACE_DEVICE __device__ __forceinline__
// A static array of shared memory, or a part of the launch's dynamic one.
#define HEADRACE_SHARED_ARRAY(T, name, size) __shared__ T name[size]
#define HEADRACE_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define HEADRACE_UNROLL _Pragma("unroll")

#else

#include "emulator/device_language.h"

// Copies of whole structures, which a compiler turns into calls that it does not instrument.
__asm__(
    ".set memcpy, headrace_emulated_memcpy\n"
    ".set memmove, headrace_emulated_memmove\n"
    ".set memset, headrace_emulated_memset\n");

#define HEADRACE_DEVICE inline __attribute__((always_inline))
#define HEADRACE_SHARED_ARRAY(T, name, size) \
  static const char name##_site = 0;         \
  T* const name = static_cast<T*>(::headrace::emulator::shared_variable(&name##_site, sizeof(T) * (size), alignof(T)))
#define HEADRACE_DYNAMIC_SHARED(name) unsigned char* const name = ::headrace::emulator::dynamic_shared()
#define HEADRACE_UNROLL

#endif
