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

// Half of an E8M0 scale, 2^(e - 128): MXFP4's elements are stored doubled (kFp4DoubledValues).
float e8m0_half_to_float(uint8_t e);
// Unsigned E4M3 (bias 7); the sign bit is ignored and 0x7f, which E4M3 calls NaN, is 0.
float ue4m3_to_float(uint8_t bits);
// E4M3 with its sign and without infinities (E4M3FN): 0x7f and 0xff are NaN.
float e4m3_to_float(uint8_t bits);
// A scale of NVFP4 with the factor of BlockScaledNvfp4.
inline float scaled_ue4m3(uint8_t bits, float scale) {
  return scale < 0.0f ? ue4m3_to_float(bits) / -scale : ue4m3_to_float(bits) * scale;
}

}  // namespace headrace
