// Float scales of a record, in registers of each instruction set's width (the compilers' vector extension).
#pragma once

#include <string.h>

#include "cpu/kernels/quantized_unpack.h"
#include "cpu/kernels/quantized_vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int8_t SignedBytes16 __attribute__((vector_size(16)));
typedef int16_t Shorts16 __attribute__((vector_size(32)));
typedef float Floats16 __attribute__((vector_size(64)));

#define HEADRACE_LOAD(type, name, from) \
  type name;                            \
  memcpy(&name, from, sizeof name)
#define HEADRACE_STORE(to, value)         \
  do {                                    \
    const auto stored_ = (value);         \
    memcpy(to, &stored_, sizeof stored_); \
  } while (false)

// Sixteen float16 from src.
HEADRACE_INLINE void widen_halves(const uint8_t* src, Floats16* out) {
  const V16 wide = load_f16(reinterpret_cast<const uint16_t*>(src));
  static_assert(sizeof wide == sizeof *out);
  memcpy(out, &wide, sizeof wide);
}

// Sub-block scales and minima of Q4_K and Q5_K: twelve packed bytes per row, [12][16].
HEADRACE_INLINE void k_scales(const uint8_t* record, float* scales, float* minima) {
  Floats16 d, dmin;
  widen_halves(record, &d);
  widen_halves(record + 32, &dmin);
  const uint8_t* packed = record + 64;
  HEADRACE_UNROLL
  for (int j = 0; j < 8; ++j) {
    Bytes16 scale, min;
    if (j < 4) {
      HEADRACE_LOAD(Bytes16, a, packed + 16 * j);
      HEADRACE_LOAD(Bytes16, b, packed + 16 * (j + 4));
      scale = a & 63;
      min = b & 63;
    } else {
      HEADRACE_LOAD(Bytes16, low, packed + 16 * (j + 4));
      HEADRACE_LOAD(Bytes16, a, packed + 16 * (j - 4));
      HEADRACE_LOAD(Bytes16, b, packed + 16 * j);
      scale = (low & 15) | ((a >> 6) << 4);
      min = (low >> 4) | ((b >> 6) << 4);
    }
    HEADRACE_STORE(scales + j * kStripRows, d * __builtin_convertvector(scale, Floats16));
    HEADRACE_STORE(minima + j * kStripRows, -(dmin * __builtin_convertvector(min, Floats16)));
  }
}

// Groups of integers: float32 scales [16], then zero points [16] of type Zeros; every block of 32 has the same.
template <class Zeros, int kBlocks>
HEADRACE_INLINE void group_scales(const uint8_t* record, float* scales, float* minima) {
  HEADRACE_LOAD(Floats16, d, record);
  HEADRACE_LOAD(Zeros, zero, record + sizeof d);
  const Floats16 min = -(d * __builtin_convertvector(zero, Floats16));
  HEADRACE_UNROLL
  for (int j = 0; j < kBlocks; ++j) {
    HEADRACE_STORE(scales + j * kStripRows, d);
    HEADRACE_STORE(minima + j * kStripRows, min);
  }
}

// Halves of sixteen E4M3 scales without sign, 0x7f being zero. A code's bits make a float16 of 2^-8 times its value.
HEADRACE_INLINE V16 half_ue4m3(const uint8_t* codes) {
  typedef uint16_t Halves16 __attribute__((vector_size(32)));
  HEADRACE_LOAD(Bytes16, bytes, codes);
  bytes &= 0x7f;
  const Bytes16 present = (Bytes16)(bytes != 0x7f);
  const Halves16 bits = __builtin_convertvector(bytes & present, Halves16) << 7;
  uint16_t halves[kStripRows];
  HEADRACE_STORE(halves, bits);
  return mul(load_f16(halves), set1(128.0f));
}

// Scales (and minima, where the format has them) of the record r, in the order of ScaleKind, block after block.
template <RecordFormat F>
HEADRACE_INLINE void record_scales(const uint8_t* r, float* scales, float* minima) {
  Floats16 d;
  if constexpr (F == RecordFormat::kQ4_K || F == RecordFormat::kQ5_K) {
    k_scales(r, scales, minima);
  } else if constexpr (F == RecordFormat::kMXFP4) {
    for (int i = 0; i < kStripRows; ++i) {
      // 2^(e - 128); the two smallest are subnormal.
      const uint32_t e = r[i];
      const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
      memcpy(scales + i, &bits, sizeof bits);
    }
  } else if constexpr (F == RecordFormat::kNVFP4) {
    HEADRACE_UNROLL
    for (int j = 0; j < 4; ++j) store(scales + j * kStripRows, half_ue4m3(r + 16 * j));
  } else if constexpr (F == RecordFormat::kNVFP4_G64) {
    // Scales with a factor of their own: as scaled_ue4m3, of which this is half.
    float factors[kStripRows];
    memcpy(factors, r, sizeof factors);
    const V16 factor = load(factors), reciprocal = sub(zero(), factor);
    HEADRACE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const V16 scale = half_ue4m3(r + 64 + 16 * j);
      store(scales + j * kStripRows, select_less(factor, zero(), div(scale, reciprocal), mul(scale, factor)));
    }
  } else if constexpr (F == RecordFormat::kINT4_G32) {
    group_scales<Bytes16, 1>(r, scales, minima);
  } else if constexpr (F == RecordFormat::kINT4_G128) {
    group_scales<Bytes16, 4>(r, scales, minima);
  } else if constexpr (F == RecordFormat::kINT8_G32) {
    group_scales<Shorts16, 1>(r, scales, minima);
  } else if constexpr (F == RecordFormat::kINT8_G128) {
    group_scales<Shorts16, 4>(r, scales, minima);
  } else if constexpr (F == RecordFormat::kIQ4_XS) {
    widen_halves(r, &d);
    for (int j = 0; j < 8; ++j) {
      float factors[16];
      for (int i = 0; i < kStripRows; ++i) {
        const int high = r[32 + 2 * i + j / 4] >> (2 * (j % 4)) & 3;
        const int low = r[64 + 16 * (j / 2) + i] >> (4 * (j % 2)) & 15;
        factors[i] = (float)((low | high << 4) - 32);
      }
      HEADRACE_LOAD(Floats16, factor, factors);
      HEADRACE_STORE(scales + j * kStripRows, d * factor);
    }
  } else if constexpr (F == RecordFormat::kQ6_K) {
    widen_halves(r, &d);
    HEADRACE_UNROLL
    for (int j = 0; j < 16; ++j) {
      HEADRACE_LOAD(SignedBytes16, scale, r + 32 + 16 * j);
      HEADRACE_STORE(scales + j * kStripRows, d * __builtin_convertvector(scale, Floats16));
    }
  } else if constexpr (F == RecordFormat::kQ3_K) {
    widen_halves(r, &d);
    HEADRACE_UNROLL
    for (int j = 0; j < 16; ++j) {
      HEADRACE_LOAD(Bytes16, low, r + 32 + 16 * (j % 8));
      HEADRACE_LOAD(Bytes16, high, r + 32 + 16 * (8 + j % 4));
      const Bytes16 bits = (j < 8 ? low & 15 : low >> 4) | (((high >> (2 * (j / 4))) & 3) << 4);
      HEADRACE_STORE(scales + j * kStripRows, d * (__builtin_convertvector(bits, Floats16) - 32.0f));
    }
  } else if constexpr (F == RecordFormat::kQ2_K) {
    Floats16 dmin;
    widen_halves(r, &d);
    widen_halves(r + 32, &dmin);
    HEADRACE_UNROLL
    for (int j = 0; j < 16; ++j) {
      HEADRACE_LOAD(Bytes16, packed, r + 64 + 16 * j);
      HEADRACE_STORE(scales + j * kStripRows, d * __builtin_convertvector(packed & 15, Floats16));
      HEADRACE_STORE(minima + j * kStripRows, -(dmin * __builtin_convertvector(packed >> 4, Floats16)));
    }
  } else {
    widen_halves(r, &d);
    HEADRACE_STORE(scales, d);
    if constexpr (F == RecordFormat::kQ4_1 || F == RecordFormat::kQ5_1) {
      widen_halves(r + 32, &d);
      HEADRACE_STORE(minima, d);
    }
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
