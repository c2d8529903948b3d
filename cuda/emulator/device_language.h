// The part of CUDA C++ that kernels use and a C++ compiler lacks. Names are CUDA's own, global as there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/barriers.h"
#include "emulator/findings.h"
#include "emulator/memory_access.h"
#include "emulator/vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

namespace headrace::emulator {
uint3 thread_index();
uint3 block_index();
dim3 block_shape();
dim3 grid_shape();
int lane_of_thread();
void* shared_variable(const void* site, size_t size, size_t alignment);
unsigned char* dynamic_shared();
void yield(const char* what, Place place);
}  // namespace headrace::emulator

#define threadIdx (::headrace::emulator::thread_index())
#define blockIdx (::headrace::emulator::block_index())
#define blockDim (::headrace::emulator::block_shape())
#define gridDim (::headrace::emulator::grid_shape())
inline constexpr int warpSize = 32;

#define HEADRACE_PLACE ::headrace::emulator::Place place = ::headrace::emulator::Place::here()

__forceinline__ void __syncthreads(HEADRACE_PLACE) {
  ::headrace::emulator::sync_block(0, 0, false, "__syncthreads", place);
}
__forceinline__ int __syncthreads_or(int value, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  return sync_block_reduce(Reduction::kOr, value != 0, "__syncthreads_or", place);
}
__forceinline__ int __syncthreads_and(int value, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  return sync_block_reduce(Reduction::kAnd, value != 0, "__syncthreads_and", place);
}
__forceinline__ int __syncthreads_count(int value, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  return sync_block_reduce(Reduction::kCount, value != 0, "__syncthreads_count", place);
}
__forceinline__ void __syncwarp(unsigned mask = 0xFFFFFFFFu, HEADRACE_PLACE) {
  ::headrace::emulator::sync_warp(mask, place);
}
__forceinline__ void __threadfence(HEADRACE_PLACE) { ::headrace::emulator::thread_fence("__threadfence", place); }
__forceinline__ void __threadfence_block(HEADRACE_PLACE) {
  ::headrace::emulator::thread_fence("__threadfence_block", place);
}
__forceinline__ void __nanosleep(unsigned, HEADRACE_PLACE) { ::headrace::emulator::yield("its sleep to end", place); }

// Votes and reductions over the lanes of a mask.
__forceinline__ unsigned __ballot_sync(unsigned mask, int value, HEADRACE_PLACE) {
  return ::headrace::emulator::ballot(mask, value != 0, "__ballot_sync", place);
}
__forceinline__ int __any_sync(unsigned mask, int value, HEADRACE_PLACE) {
  return ::headrace::emulator::ballot(mask, value != 0, "__any_sync", place) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int value, HEADRACE_PLACE) {
  return ::headrace::emulator::ballot(mask, value == 0, "__all_sync", place) == 0;
}
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value, HEADRACE_PLACE) {
  static_assert(std::is_integral_v<T>);
  return ::headrace::emulator::match_any(mask, static_cast<uint64_t>(value), place);
}
#define HEADRACE_REDUCTION(name, T, kind)                                                                      \
  __forceinline__ T name(unsigned mask, T value, HEADRACE_PLACE) {                                             \
    using namespace headrace::emulator;                                                                        \
    return static_cast<T>(reduce_warp(WarpReduction::kind, mask, static_cast<uint32_t>(value), #name, place)); \
  }
HEADRACE_REDUCTION(__reduce_add_sync, int, kAdd)
HEADRACE_REDUCTION(__reduce_add_sync, unsigned, kAdd)
HEADRACE_REDUCTION(__reduce_min_sync, int, kMin)
HEADRACE_REDUCTION(__reduce_min_sync, unsigned, kUnsignedMin)
HEADRACE_REDUCTION(__reduce_max_sync, int, kMax)
HEADRACE_REDUCTION(__reduce_max_sync, unsigned, kUnsignedMax)
HEADRACE_REDUCTION(__reduce_and_sync, unsigned, kAnd)
HEADRACE_REDUCTION(__reduce_or_sync, unsigned, kOr)
HEADRACE_REDUCTION(__reduce_xor_sync, unsigned, kXor)
#undef HEADRACE_REDUCTION

// Shuffles. Bits beyond a value's own are zero.
namespace headrace::emulator {
template <class T>
uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<uint64_t>(value);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<uint32_t>(value);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<uint16_t>(value);
  } else {
    return std::bit_cast<uint8_t>(value);
  }
}
template <class T>
T from_bits(uint64_t bits) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(bits);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<uint32_t>(bits));
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>(static_cast<uint16_t>(bits));
  } else {
    return std::bit_cast<T>(static_cast<uint8_t>(bits));
  }
}
}  // namespace headrace::emulator

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  const int first = lane_of_thread() & ~(width - 1);
  return from_bits<T>(shuffle(mask, to_bits(value), first | (source & (width - 1)), "__shfl_sync", place));
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  const int lane = lane_of_thread(), end = (lane & ~(width - 1)) + width, source = lane ^ bits;
  return from_bits<T>(shuffle(mask, to_bits(value), source < end ? source : lane, "__shfl_xor_sync", place));
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  const int lane = lane_of_thread(), end = (lane & ~(width - 1)) + width, source = lane + static_cast<int>(delta);
  return from_bits<T>(shuffle(mask, to_bits(value), source < end ? source : lane, "__shfl_down_sync", place));
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, HEADRACE_PLACE) {
  using namespace headrace::emulator;
  const int lane = lane_of_thread(), first = lane & ~(width - 1), source = lane - static_cast<int>(delta);
  return from_bits<T>(shuffle(mask, to_bits(value), source >= first ? source : lane, "__shfl_up_sync", place));
}

// Atomic operations; the value from before is returned.
#define HEADRACE_ATOMIC(name, expression)                                                                         \
  template <class T>                                                                                              \
  __forceinline__ T name(T* address, std::type_identity_t<T> operand) {                                           \
    using namespace headrace::emulator;                                                                           \
    return from_bits<T>(atomic_update(                                                                            \
        address, sizeof(T),                                                                                       \
        [](uint64_t old_bits, uint64_t operand_bits, uint64_t) __attribute__((no_sanitize("thread")))->uint64_t { \
          const T old = from_bits<T>(old_bits), value = from_bits<T>(operand_bits);                               \
          return to_bits(static_cast<T>(expression));                                                             \
        },                                                                                                        \
        to_bits(operand), 0));                                                                                    \
  }
HEADRACE_ATOMIC(atomicAdd, old + value)
HEADRACE_ATOMIC(atomicMax, old < value ? value : old)
HEADRACE_ATOMIC(atomicMin, value < old ? value : old)
HEADRACE_ATOMIC(atomicAnd, old& value)
HEADRACE_ATOMIC(atomicOr, old | value)
HEADRACE_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef HEADRACE_ATOMIC
template <class T>
__forceinline__ T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  using namespace headrace::emulator;
  return from_bits<T>(atomic_update(
      address, sizeof(T),
      [](uint64_t old, uint64_t operand, uint64_t expected) { return old == expected ? operand : old; }, to_bits(value),
      to_bits(compare)));
}

// Numbers.
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
