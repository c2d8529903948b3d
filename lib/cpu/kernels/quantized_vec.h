// Integer and float vectors of the quantized kernels, at the instruction set's own width: lanes are output rows.
#pragma once

#include <string.h>

#include "cpu/kernels/isa.h"
#include "cpu/kernels/quantized_kernels.h"
#include "cpu/kernels/vec.h"

// IntVec and FloatVec of kLanes lanes. With HEADRACE_EXACT_DOT
//   dot(sum, weights, activations)   adds the four products of each lane's bytes: weights unsigned under
//                                    HEADRACE_UNSIGNED_DOT, else signed, and activations in -127..127
// else the parts of a product by pairs. int_shift_left by a negative count gives zero, float_fma rounds once
// everywhere, and look_up takes bytes 0..15 as indices into 16 bytes.
#if HEADRACE_NEON
#include "cpu/kernels/quantized_vec_neon.h"
#else
#include "cpu/kernels/quantized_vec_x86.h"
#endif

namespace headrace::HEADRACE_ISA_NAMESPACE {

HEADRACE_INLINE int32_t load_four(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return four;
}

// Shifts 16-bit pieces, left where count is negative; count is known once loops are unrolled.
typedef uint16_t ShortVec __attribute__((vector_size(4 * kLanes)));
HEADRACE_INLINE IntVec bits_right(IntVec a, int count) {
  const ShortVec shorts = (ShortVec)a;
  return (IntVec)(count >= 0 ? shorts >> (count >= 0 ? count : 0) : shorts << (count >= 0 ? 0 : -count));
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
