// float16 and bfloat16 as bits in integer registers, rounded to nearest even.
#pragma once

#include "device.h"
#if !defined(__CUDACC__)
#include "tensor/half.h"
#endif

namespace headrace::cuda {

HEADRACE_DEVICE float half_bits_to_float(uint16_t bits) {
#if defined(__CUDACC__)
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
#else
  return half_to_float(bits);
#endif
}

HEADRACE_DEVICE uint16_t float_to_half_bits(float value) {
#if defined(__CUDACC__)
  uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
#else
  return float_to_half(value);
#endif
}

// Two values, the first in the low half of the register.
HEADRACE_DEVICE uint32_t pack_half2(float low, float high) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return static_cast<uint32_t>(float_to_half(low)) | static_cast<uint32_t>(float_to_half(high)) << 16;
#endif
}

HEADRACE_DEVICE float bfloat_bits_to_float(uint16_t bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

HEADRACE_DEVICE uint16_t float_to_bfloat_bits(float value) {
#if defined(__CUDACC__)
  uint16_t out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
#else
  return float_to_bfloat16(value);
#endif
}

HEADRACE_DEVICE uint32_t pack_bfloat2(float low, float high) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return static_cast<uint32_t>(float_to_bfloat16(low)) | static_cast<uint32_t>(float_to_bfloat16(high)) << 16;
#endif
}

// Element by element of two pairs.
HEADRACE_DEVICE uint32_t subtract_half2(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
#else
  const auto part = [](uint32_t x, int shift) { return half_to_float(static_cast<uint16_t>(x >> shift)); };
  return pack_half2(part(a, 0) - part(b, 0), part(a, 16) - part(b, 16));
#endif
}

// Byte i of the result is byte (select >> 4i) & 7 of the eight of `low` and `high`.
HEADRACE_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t select) {
#if defined(__CUDACC__)
  return __byte_perm(low, high, select);
#else
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (8 * (select >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return out;
#endif
}

}  // namespace headrace::cuda
