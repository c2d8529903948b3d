#include "tensor/half.h"

#include <bit>
#include <cmath>

namespace headrace {

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in binary32
  return sign ? -magnitude : magnitude;
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (magnitude < 0x38800000) {                       // subnormal half: let float addition round to 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float e8m0_half_to_float(uint8_t e) {
  // 2^(e - 128); the two smallest are subnormal in binary32.
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

float ue4m3_to_float(uint8_t bits) {
  if (bits == 0x7f) return 0.0f;  // NaN in E4M3; taken as zero
  const uint32_t exponent = (bits >> 3) & 15;
  const float mantissa = static_cast<float>(bits & 7);
  if (exponent == 0) return mantissa * 0x1p-9f;
  return (1.0f + mantissa * 0.125f) * std::bit_cast<float>((exponent + 120) << 23);
}

float e4m3_to_float(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = ue4m3_to_float(bits & 0x7f);
  return bits & 0x80 ? -magnitude : magnitude;
}

}  // namespace headrace
