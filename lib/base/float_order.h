// Floats in the order of unsigned numbers.
#pragma once

#include <bit>
#include <cstdint>

namespace headrace {

// Greater floats have greater keys; both zeros have one. Not for NaN.
inline uint32_t order_key(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace headrace
