// The fixed grids of the IQ formats: each entry holds the values of 8 (or 4) neighbouring elements, element i
// in byte i counted from the least significant. Data of PyPI gguf (MIT, see NOTICE), written by
// generate_iq_grids.py.
#pragma once

#include <bit>
#include <cstdint>

namespace headrace {

extern const uint64_t kIq2XxsGrid[256];  // bytes 8, 25, 43
extern const uint64_t kIq2XsGrid[512];   // bytes 8, 25, 43
extern const uint64_t kIq2SGrid[1024];   // bytes 8, 25, 43
extern const uint64_t kIq1SGrid[2048];   // signed bytes -1, 0, 1; IQ1_M uses it too
extern const uint32_t kIq3XxsGrid[256];  // bytes 4, 12, 20, 28, 36, 44, 52, 62
extern const uint32_t kIq3SGrid[512];    // odd bytes 1..15

// Eight sign bits (1 is minus) from the seven stored ones: the eighth makes the number of minuses even.
inline uint8_t iq_signs(uint32_t seven_bits) {
  return static_cast<uint8_t>(seven_bits | (static_cast<uint32_t>(std::popcount(seven_bits) & 1) << 7));
}

// The values of IQ4_NL's and IQ4_XS's 4-bit codes.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of FP4 (E2M1) codes, so that they are whole numbers; MXFP4's and NVFP4's scales take the
// half.
inline constexpr int8_t kFp4DoubledValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace headrace
