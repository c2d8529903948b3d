// Panels of float codes under scales, widened to float32: what products with such weights begin with.
#include <string.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "tensor/nf4.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

typedef uint8_t Codes16 __attribute__((vector_size(16)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));

// Sixteen E4M3 codes. Their bits make a float16 of 2^-8 times the value: its exponent's bias is 8 more, and subnormal
// ones stay subnormal. Both products of the whole are exact or rounded as scale * value is.
HEADRACE_INLINE V16 widen_fp8(const uint8_t* codes, V16 scale) {
  Codes16 bytes;
  memcpy(&bytes, codes, sizeof bytes);
  const Halves16 wide = __builtin_convertvector(bytes, Halves16);
  const Halves16 bits = ((wide & 0x80) << 8) | ((wide & 0x7f) << 7);
  uint16_t halves[kPanel];
  memcpy(halves, &bits, sizeof bits);
  return mul(scale, mul(load_f16(halves), set1(256.0f)));
}

template <int kGroup>
void widen_fp8_records(const uint8_t* records, int64_t num_records, float* dst) {
  for (int64_t n = 0; n < num_records; ++n) {
    float scales[kPanel];
    memcpy(scales, records, sizeof scales);
    records += sizeof scales;
    const V16 scale = load(scales);
    for (int k = 0; k < kGroup; ++k, records += kPanel, dst += kPanel) store(dst, widen_fp8(records, scale));
  }
}

void widen_nf4_records(const uint8_t* records, int64_t num_records, float* dst) {
  constexpr int kHalf = 32;
  for (int64_t n = 0; n < num_records; ++n, dst += kHalf * kPanel) {
    float scales[kPanel];
    memcpy(scales, records, sizeof scales);
    records += sizeof scales;
    for (int k = 0; k < kHalf; ++k, records += kPanel, dst += kPanel) {
      for (int lane = 0; lane < kPanel; ++lane) {
        dst[lane] = scales[lane] * kNf4Values[records[lane] & 15];
        dst[kHalf * kPanel + lane] = scales[lane] * kNf4Values[records[lane] >> 4];
      }
    }
  }
}

}  // namespace

void widen_scaled(ScaledFloat format, const uint8_t* records, int64_t num_records, float* dst) {
  switch (format) {
    case ScaledFloat::kFp8G32: return widen_fp8_records<32>(records, num_records, dst);
    case ScaledFloat::kFp8G128: return widen_fp8_records<128>(records, num_records, dst);
    case ScaledFloat::kNf4G64: return widen_nf4_records(records, num_records, dst);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
