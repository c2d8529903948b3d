// exp for probabilities, the same bits on every machine: additions and multiplications in a fixed order. The
// C library's own differs between versions and processors, and one bit can turn a draw.
#pragma once

#include <bit>
#include <cstdint>

namespace headrace {

// e^x for x <= 0 (relative error below 2^-51); 0 where e^x would be less than 2^-1022. The folder is compiled
// without contraction to fused multiply-adds, see CMakeLists.txt.
inline double portable_exp(double x) {
  constexpr double kLowest = -708.39;
  constexpr double kLog2E = 1.4426950408889634;
  // ln 2 in two parts, the first with 21 trailing zero bits: k * kLn2High is exact for |k| < 2^11.
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double clamped = x < kLowest ? kLowest : x;
  const double shifted = clamped * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (clamped - k * kLn2High) - k * kLn2Low;  // |r| <= ln(2) / 2
  // Taylor's series; the first term left out is r^14 / 14! < 2^-57.
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // k as an integer lies in shifted's low bits; 2^k by its exponent field.
  const uint64_t bits = std::bit_cast<uint64_t>(shifted);
  const double scale = std::bit_cast<double>((bits + 1023) << 52);
  return x < kLowest ? 0.0 : p * scale;
}

}  // namespace headrace
