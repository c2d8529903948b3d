// vec.h for AArch64: four registers of 128 bits.
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu/kernels/isa.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

constexpr int kParts = 4;
constexpr int kWidth = 4;

struct V16 {
  float32x4_t v[kParts];
};

HEADRACE_INLINE V16 zero() { HEADRACE_EACH(vdupq_n_f32(0.0f)); }
HEADRACE_INLINE V16 set1(float x) { HEADRACE_EACH(vdupq_n_f32(x)); }
HEADRACE_INLINE V16 load(const float* p) { HEADRACE_EACH(vld1q_f32(p + i * kWidth)); }
HEADRACE_INLINE void store(float* p, V16 a) {
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) vst1q_f32(p + i * kWidth, a.v[i]);
}
HEADRACE_INLINE V16 add(V16 a, V16 b) { HEADRACE_EACH(vaddq_f32(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 sub(V16 a, V16 b) { HEADRACE_EACH(vsubq_f32(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 mul(V16 a, V16 b) { HEADRACE_EACH(vmulq_f32(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 div(V16 a, V16 b) { HEADRACE_EACH(vdivq_f32(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 fma(V16 a, V16 b, V16 c) { HEADRACE_EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// b where either is NaN, unlike the processor's own maximum.
HEADRACE_INLINE float32x4_t greater_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
HEADRACE_INLINE V16 max(V16 a, V16 b) { HEADRACE_EACH(greater_of(a.v[i], b.v[i])); }
HEADRACE_INLINE V16 min(V16 a, V16 b) { HEADRACE_EACH(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
HEADRACE_INLINE V16 abs(V16 a) { HEADRACE_EACH(vabsq_f32(a.v[i])); }
HEADRACE_INLINE V16 copy_sign(V16 magnitude, V16 sign) {
  const uint32x4_t mask = vdupq_n_u32(0x80000000);
  HEADRACE_EACH(vreinterpretq_f32_u32(
      vorrq_u32(vreinterpretq_u32_f32(magnitude.v[i]), vandq_u32(vreinterpretq_u32_f32(sign.v[i]), mask))));
}
HEADRACE_INLINE V16 round(V16 a) { HEADRACE_EACH(vrndnq_f32(a.v[i])); }
HEADRACE_INLINE V16 select_less(V16 less, V16 bound, V16 a, V16 b) {
  HEADRACE_EACH(vbslq_f32(vcltq_f32(less.v[i], bound.v[i]), a.v[i], b.v[i]));
}
HEADRACE_INLINE V16 scale_exponent(V16 a, V16 n) {
  HEADRACE_EACH(
      vmulq_f32(a.v[i], vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23))));
}
HEADRACE_INLINE V16 keep_lanes(V16 a, int begin, int end, float other) {
  const int32_t numbers[kWidth] = {0, 1, 2, 3};
  V16 out;
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const int32x4_t lane = vaddq_s32(vld1q_s32(numbers), vdupq_n_s32(i * kWidth));
    const uint32x4_t keep = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    out.v[i] = vbslq_f32(keep, a.v[i], vdupq_n_f32(other));
  }
  return out;
}
HEADRACE_INLINE float reduce_add(V16 a) {
  const float32x4_t quarter = vaddq_f32(vaddq_f32(a.v[0], a.v[1]), vaddq_f32(a.v[2], a.v[3]));
  const float32x2_t pair = vadd_f32(vget_low_f32(quarter), vget_high_f32(quarter));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
HEADRACE_INLINE float reduce_max(V16 a) {
  const float32x4_t quarter = greater_of(greater_of(a.v[0], a.v[1]), greater_of(a.v[2], a.v[3]));
  const float32x4_t pair = greater_of(quarter, vextq_f32(quarter, quarter, 2));
  return vgetq_lane_f32(greater_of(pair, vextq_f32(pair, pair, 1)), 0);
}
HEADRACE_INLINE V16 load_f16(const uint16_t* p) {
  HEADRACE_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + i * kWidth))));
}
HEADRACE_INLINE V16 load_bf16(const uint16_t* p) {
  HEADRACE_EACH(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + i * kWidth), 16)));
}
HEADRACE_INLINE V16 look_up(const float* table, const uint8_t* indexes) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = table[indexes[i]];
  return load(lanes);
}
HEADRACE_INLINE V16 load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
HEADRACE_INLINE void store_f16(uint16_t* p, V16 a) {
  HEADRACE_UNROLL
  for (int i = 0; i < kParts; ++i) vst1_u16(p + i * kWidth, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
HEADRACE_INLINE float widen_half(uint16_t half) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}
HEADRACE_INLINE uint16_t narrow_half(float x) {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}
HEADRACE_INLINE int32_t nearest_int(float x) { return vgetq_lane_s32(vcvtnq_s32_f32(vdupq_n_f32(x)), 0); }
HEADRACE_INLINE float scalar_sqrt(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

HEADRACE_INLINE V16 max_bits(V16 a, V16 b) {
  HEADRACE_EACH(vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a.v[i]), vreinterpretq_s32_f32(b.v[i]))));
}
HEADRACE_INLINE int32_t reduce_max_bits(V16 a) {
  const V16 low = {{a.v[0], a.v[1], a.v[0], a.v[1]}}, high = {{a.v[2], a.v[3], a.v[2], a.v[3]}};
  const V16 half = max_bits(low, high);
  return vmaxvq_s32(vmaxq_s32(vreinterpretq_s32_f32(half.v[0]), vreinterpretq_s32_f32(half.v[1])));
}

using Codes16 = int8x16_t;
HEADRACE_INLINE Codes16 zero_codes() { return vdupq_n_s8(0); }
HEADRACE_INLINE Codes16 rounded_codes(V16 a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[0])), vmovn_s32(vcvtnq_s32_f32(a.v[1])));
  const int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[2])), vmovn_s32(vcvtnq_s32_f32(a.v[3])));
  return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}
HEADRACE_INLINE int32_t sum_codes(Codes16 codes) { return vaddlvq_s8(codes); }
HEADRACE_INLINE void store_codes(int8_t* p, Codes16 codes) { vst1q_s8(p, codes); }
template <int kIndex>
HEADRACE_INLINE int32_t four_codes(Codes16 codes) {
  return vgetq_lane_s32(vreinterpretq_s32_s8(codes), kIndex);
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
