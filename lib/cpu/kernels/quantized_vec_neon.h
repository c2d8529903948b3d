// quantized_vec.h for AArch64. Weights stay signed, so nothing is added to signed codes.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "cpu/kernels/isa.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

using IntVec = int32x4_t;
using FloatVec = float32x4_t;
constexpr int kLanes = 4;

HEADRACE_INLINE IntVec int_zero() { return vdupq_n_s32(0); }
HEADRACE_INLINE IntVec int_set1(int32_t x) { return vdupq_n_s32(x); }
HEADRACE_INLINE IntVec int_load(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
HEADRACE_INLINE void int_store(uint8_t* p, IntVec a) { vst1q_u8(p, vreinterpretq_u8_s32(a)); }
HEADRACE_INLINE IntVec int_shift_left(IntVec a, int count) {
  return count < 0 ? int_zero() : vshlq_s32(a, vdupq_n_s32(count));
}
HEADRACE_INLINE IntVec dot(IntVec sum, IntVec weights, IntVec activations) {
  const int8x16_t w = vreinterpretq_s8_s32(weights), a = vreinterpretq_s8_s32(activations);
#if HEADRACE_SIGNED_DOT
  return vdotq_s32(sum, w, a);
#else
  // Activations are at most 127 in magnitude: two products stay within 2 * 127 * 128 < 32768.
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(a)), high = vmull_high_s8(w, a);
  return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
}
HEADRACE_INLINE IntVec bits_and(IntVec a, IntVec b) { return vandq_s32(a, b); }
HEADRACE_INLINE IntVec bits_or(IntVec a, IntVec b) { return vorrq_s32(a, b); }
HEADRACE_INLINE IntVec bits_xor(IntVec a, IntVec b) { return veorq_s32(a, b); }
HEADRACE_INLINE IntVec bytes_set1(int x) { return vreinterpretq_s32_u8(vdupq_n_u8(static_cast<uint8_t>(x))); }
HEADRACE_INLINE IntVec look_up(const uint8_t* table, IntVec index) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(index)));
}
HEADRACE_INLINE FloatVec to_float(IntVec a) { return vcvtq_f32_s32(a); }
HEADRACE_INLINE FloatVec float_set1(float x) { return vdupq_n_f32(x); }
HEADRACE_INLINE FloatVec float_load(const float* p) { return vld1q_f32(p); }
HEADRACE_INLINE void float_store(float* p, FloatVec a) { vst1q_f32(p, a); }
HEADRACE_INLINE FloatVec float_add(FloatVec a, FloatVec b) { return vaddq_f32(a, b); }
HEADRACE_INLINE FloatVec float_mul(FloatVec a, FloatVec b) { return vmulq_f32(a, b); }
HEADRACE_INLINE FloatVec float_fma(FloatVec a, FloatVec b, FloatVec c) { return vfmaq_f32(c, a, b); }

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
