// Elements of those types, in a kernel.
#pragma once

#include "device.h"
#include "kernels/float_type.h"
#include "ptx/half.h"

namespace headrace::cuda {

// Element i of an array of the type.
template <FloatType kType>
HEADRACE_DEVICE float load_float(const void* array, int64_t i) {
  if constexpr (kType == FloatType::kF32) {
    return static_cast<const float*>(array)[i];
  } else {
    const uint16_t bits = static_cast<const uint16_t*>(array)[i];
    return kType == FloatType::kF16 ? half_bits_to_float(bits) : bfloat_bits_to_float(bits);
  }
}

template <FloatType kType>
HEADRACE_DEVICE void store_float(void* array, int64_t i, float value) {
  if constexpr (kType == FloatType::kF32) {
    static_cast<float*>(array)[i] = value;
  } else {
    static_cast<uint16_t*>(array)[i] =
        kType == FloatType::kF16 ? float_to_half_bits(value) : float_to_bfloat_bits(value);
  }
}

// Two values, the first in the low half of the register.
template <FloatType kType>
HEADRACE_DEVICE uint32_t pack_pair(float low, float high) {
  static_assert(kType != FloatType::kF32);
  return kType == FloatType::kF16 ? pack_half2(low, high) : pack_bfloat2(low, high);
}

}  // namespace headrace::cuda
