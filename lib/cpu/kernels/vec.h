// Sixteen float lanes on every instruction set: V16 is one register of 512 bits, two of 256 or four of 128. One kernel
// source then has one lane order everywhere; only fused rounding (absent from x86's baseline) and the trees of the
// reductions differ between instruction sets.
//
// Beyond arithmetic and loads of each type, every set has
//   max, min                  b where either of a and b is NaN
//   copy_sign, abs, round     round: to nearest, ties to even
//   select_less(l, m, a, b)   l < m ? a : b, lane by lane
//   scale_exponent(a, n)      a * 2^n for whole n in [-126, 127]
//   look_up(table, indexes)   table[indexes[lane]] of 16 floats and 16 bytes below 16
//   keep_lanes(a, b, e, x)    lanes outside [b, e) become x
//   max_bits, reduce_max_bits bit patterns compared as int32: of non-negative floats they order like the floats
//   widen_half, narrow_half   float16 and back, to nearest even
//   nearest_int               ties to even
// and Codes16, sixteen int8:
//   rounded_codes(a)          lanes in -127..127 rounded to nearest even
//   four_codes<i>             codes 4i..4i+3 as the bytes of an int32
#pragma once

#include "cpu/kernels/isa.h"

// Applies an expression in i to each part of a new V16.
#define HEADRACE_EACH(expression)    \
  V16 out_;                          \
  HEADRACE_UNROLL                    \
  for (int i = 0; i < kParts; ++i) { \
    out_.v[i] = (expression);        \
  }                                  \
  return out_

#if HEADRACE_NEON
#include "cpu/kernels/vec_neon.h"
#else
#include "cpu/kernels/vec_x86.h"
#endif
#undef HEADRACE_EACH

namespace headrace::HEADRACE_ISA_NAMESPACE {

// The first `count` lanes, zero beyond.
HEADRACE_INLINE V16 load_partial(const float* p, int64_t count) {
  float lanes[16] = {};
  memcpy(lanes, p, static_cast<size_t>(count) * sizeof(float));
  return load(lanes);
}
HEADRACE_INLINE void store_partial(float* p, V16 a, int64_t count) {
  float lanes[16];
  store(lanes, a);
  memcpy(p, lanes, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
