// float16, bfloat16 and the 8-bit scales of MXFP4 and NVFP4, converted exactly (scalar; kernels have their own).
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace {

// IEEE 754 binary16 to binary32, exact (subnormals, infinities and NaN included).
float half_to_float(uint16_t half);
// binary32 to binary16, round to nearest even; overflow gives infinity.
uint16_t float_to_half(float value);

inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
// Round to nearest even; NaN stays NaN.
uint16_t float_to_bfloat16(float value);

}  // namespace headrace
