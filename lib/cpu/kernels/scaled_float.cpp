// Panels of float codes under scales: widened to float32 for many rows, multiplied as they are read for one.
#include <string.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "tensor/nf4.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

typedef uint8_t Codes16 __attribute__((vector_size(16)));
typedef int8_t SignedCodes16 __attribute__((vector_size(16)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));

// Sixteen E4M3 codes times scales, of which 2^8 is given. A code's bits make a float16 of 2^-8 times its value: the
// exponent's bias is 8 more, and subnormal ones stay subnormal. The product is rounded as scale * value is.
HEADRACE_INLINE V16 widen_fp8(const uint8_t* codes, V16 scale_256) {
  SignedCodes16 bytes;
  memcpy(&bytes, codes, sizeof bytes);
  // The sign stands in bits 7 to 15 of the widened code, of which the shift keeps two.
  const Halves16 bits = (__builtin_convertvector(bytes, Halves16) << 7) & 0xbfff;
  uint16_t halves[kPanel];
  memcpy(halves, &bits, sizeof bits);
  return mul(scale_256, load_f16(halves));
}

// Element k of a record [16 scales][codes of the k's, interleaved over 16 rows].
template <int kBlock>
struct Fp8 {
  static constexpr int kGroup = kBlock, kCodes = kBlock;
  static constexpr float kScaleFactor = 256.0f;  // exact, as long as weights are far below the greatest float
  __attribute__((always_inline)) static V16 element(const uint8_t* codes, V16 scale, int k) {
    return widen_fp8(codes + k * kPanel, scale);
  }
};

struct Nf4 {
  static constexpr int kGroup = 64, kCodes = 32;
  static constexpr float kScaleFactor = 1.0f;
  __attribute__((always_inline)) static V16 element(const uint8_t* codes, V16 scale, int k) {
    Codes16 bytes;
    memcpy(&bytes, codes + k % kCodes * kPanel, sizeof bytes);
    if (k >= kCodes) bytes >>= 4;
    bytes &= 15;
    uint8_t indexes[kPanel];
    memcpy(indexes, &bytes, sizeof bytes);
    return mul(scale, look_up(kNf4Values, indexes));
  }
};

constexpr int64_t kAheadBytes = 2048;
constexpr int kLineElements = 4;
constexpr int64_t kScaleBytes = kPanel * sizeof(float);
template <class Format>
constexpr int64_t kRecordBytes = kScaleBytes + Format::kCodes* kPanel;

template <class Format>
HEADRACE_INLINE V16 load_scales(const uint8_t* record) {
  float scales[kPanel];
  memcpy(scales, record, sizeof scales);
  return mul(load(scales), set1(Format::kScaleFactor));
}

template <class Format>
void widen_records(const uint8_t* record, int64_t num_records, float* dst) {
  for (int64_t n = 0; n < num_records; ++n, record += kRecordBytes<Format>) {
    const V16 scale = load_scales<Format>(record);
    for (int k = 0; k < Format::kGroup; ++k, dst += kPanel) store(dst, Format::element(record + kScaleBytes, scale, k));
  }
}

// The sums of multiply() of float_matmul.cpp for one row, of a chunk at most.
template <class Format, int kPanels>
void multiply_records(const ScaledRow& row) {
  V16 sums[kPanels], scale[kPanels];
  HEADRACE_UNROLL
  for (int p = 0; p < kPanels; ++p) sums[p] = zero();
  const float* x = row.x;
  for (int64_t n = 0; n < row.num_records; ++n, x += Format::kGroup) {
    const uint8_t* const record = row.records + n * kRecordBytes<Format>;
    HEADRACE_UNROLL
    for (int p = 0; p < kPanels; ++p) scale[p] = load_scales<Format>(record + p * row.panel_bytes);
    _Pragma("GCC unroll 4") for (int k = 0; k < Format::kGroup; ++k) {
      const V16 value = set1(x[k]);
      HEADRACE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* const codes = record + p * row.panel_bytes + kScaleBytes;
        if (k % kLineElements == 0) __builtin_prefetch(codes + k % Format::kCodes * kPanel + kAheadBytes, 0, 3);
        sums[p] = fma(value, Format::element(codes, scale[p], k), sums[p]);
      }
    }
  }
  HEADRACE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    float* const total = row.totals + p * kPanel;
    store(total, add(load(total), sums[p]));
  }
}

template <class Format>
void multiply_panels(const ScaledRow& row) {
  if (row.panels == 2) {
    multiply_records<Format, 2>(row);
  } else {
    multiply_records<Format, 1>(row);
  }
}

}  // namespace

void widen_scaled(ScaledFloat format, const uint8_t* records, int64_t num_records, float* dst) {
  switch (format) {
    case ScaledFloat::kFp8G32: return widen_records<Fp8<32>>(records, num_records, dst);
    case ScaledFloat::kFp8G128: return widen_records<Fp8<128>>(records, num_records, dst);
    case ScaledFloat::kNf4G64: return widen_records<Nf4>(records, num_records, dst);
  }
}

void multiply_scaled(ScaledFloat format, const ScaledRow& row) {
  switch (format) {
    case ScaledFloat::kFp8G32: return multiply_panels<Fp8<32>>(row);
    case ScaledFloat::kFp8G128: return multiply_panels<Fp8<128>>(row);
    case ScaledFloat::kNf4G64: return multiply_panels<Nf4>(row);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
