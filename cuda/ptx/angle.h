// Sine and cosine of an angle in half turns, for which no reduction by pi is needed.
#pragma once

#include "device.h"

namespace headrace::cuda {

HEADRACE_DEVICE void sine_and_cosine(float half_turns, float* sine, float* cosine) {
#if defined(__CUDACC__)
  sincospif(half_turns, sine, cosine);
#else
  constexpr double kHalfTurn = 3.141592653589793;
  *sine = static_cast<float>(std::sin(kHalfTurn * static_cast<double>(half_turns)));
  *cosine = static_cast<float>(std::cos(kHalfTurn * static_cast<double>(half_turns)));
#endif
}

}  // namespace headrace::cuda
