// Unpacking records of a strip. Vectors of 64 bytes (one group of 4 k in 16 rows) in the compilers' vector extension:
// each instruction set gets them in registers of its own width.
#include "cpu/kernels/quantized_unpack.h"

#include <immintrin.h>
#include <string.h>

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

typedef uint8_t Bytes64 __attribute__((vector_size(64)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int8_t SignedBytes16 __attribute__((vector_size(16)));
typedef float Floats16 __attribute__((vector_size(64)));

#define LOAD(type, name, from) \
  type name;                   \
  memcpy(&name, from, sizeof name)
#define STORE(to, value)                  \
  do {                                    \
    const auto stored_ = (value);         \
    memcpy(to, &stored_, sizeof stored_); \
  } while (false)

// Sixteen float16 from src.
HEADRACE_INLINE void widen_halves(const uint8_t* src, Floats16* out) {
#if HEADRACE_ISA_LEVEL == 2
  const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)src));
  memcpy(out, &wide, sizeof wide);
#elif HEADRACE_ISA_LEVEL == 1
  const __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)src));
  const __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(src + 16)));
  memcpy(out, &low, sizeof low);
  memcpy((char*)out + sizeof low, &high, sizeof high);
#else
  // Shifted into place the exponent is 112 too small; the product corrects it, subnormals included.
  uint16_t halves[16];
  float floats[16];
  memcpy(halves, src, sizeof halves);
  for (int i = 0; i < 16; ++i) {
    const uint32_t magnitude = halves[i] & 0x7fffu;
    uint32_t bits = magnitude << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    if (magnitude >= 0x7c00u) bits = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    bits |= (uint32_t)(halves[i] & 0x8000u) << 16;
    memcpy(&floats[i], &bits, sizeof bits);
  }
  memcpy(out, floats, sizeof floats);
#endif
}

// Four-bit codes of a block: byte i of plane p holds groups p (low) and p + 4 (high).
HEADRACE_INLINE void unpack_nibbles(const uint8_t* planes, uint8_t* codes) {
  for (int p = 0; p < 4; ++p) {
    LOAD(Bytes64, packed, planes + 64 * p);
    STORE(codes + 64 * p, packed & 15);
    STORE(codes + 64 * (p + 4), packed >> 4);
  }
}

// Four-bit codes and a fifth bit: bit g of byte i of `high` belongs to group g.
HEADRACE_INLINE void unpack_fives(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  LOAD(Bytes64, bits, high);
  for (int p = 0; p < 4; ++p) {
    LOAD(Bytes64, packed, planes + 64 * p);
    STORE(codes + 64 * p, (packed & 15) | (((bits >> p) & 1) << 4));
    STORE(codes + 64 * (p + 4), (packed >> 4) | (((bits >> (p + 4)) & 1) << 4));
  }
}

// Four-bit codes and two more bits: bits 2q of byte i of high plane h belong to group 4h + q.
HEADRACE_INLINE void unpack_sixes(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  LOAD(Bytes64, bits0, high);
  LOAD(Bytes64, bits1, high + 64);
  for (int p = 0; p < 4; ++p) {
    LOAD(Bytes64, packed, planes + 64 * p);
    STORE(codes + 64 * p, (packed & 15) | (((bits0 >> (2 * p)) & 3) << 4));
    STORE(codes + 64 * (p + 4), (packed >> 4) | (((bits1 >> (2 * p)) & 3) << 4));
  }
}

HEADRACE_INLINE void unpack_twos(const uint8_t* planes, uint8_t* codes) {
  for (int h = 0; h < 2; ++h) {
    LOAD(Bytes64, bits, planes + 64 * h);
    for (int q = 0; q < 4; ++q) STORE(codes + 64 * (4 * h + q), (bits >> (2 * q)) & 3);
  }
}

HEADRACE_INLINE void unpack_threes(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  LOAD(Bytes64, third, high);
  for (int h = 0; h < 2; ++h) {
    LOAD(Bytes64, bits, planes + 64 * h);
    for (int q = 0; q < 4; ++q) {
      const int g = 4 * h + q;
      STORE(codes + 64 * g, ((bits >> (2 * q)) & 3) | (((third >> g) & 1) << 2));
    }
  }
}

HEADRACE_INLINE void unpack_bytes(const uint8_t* planes, uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    LOAD(Bytes64, packed, planes + 64 * g);
    STORE(codes + 64 * g, packed ^ kSignFlip);
  }
}

// Four-bit codes through a table of 16 bytes.
HEADRACE_INLINE void unpack_table(const uint8_t* table, const uint8_t* planes, uint8_t* codes) {
#if HEADRACE_ISA_LEVEL == 2
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
  const __m512i mask = _mm512_set1_epi8(15);
  for (int p = 0; p < 4; ++p) {
    const __m512i packed = _mm512_loadu_si512(planes + 64 * p);
    _mm512_storeu_si512(codes + 64 * p, _mm512_shuffle_epi8(values, _mm512_and_si512(packed, mask)));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
    _mm512_storeu_si512(codes + 64 * (p + 4), _mm512_shuffle_epi8(values, high));
  }
#elif HEADRACE_ISA_LEVEL == 1
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  const __m256i mask = _mm256_set1_epi8(15);
  for (int p = 0; p < 8; ++p) {
    const __m256i packed = _mm256_loadu_si256((const __m256i*)(planes + 32 * p));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    _mm256_storeu_si256((__m256i*)(codes + 32 * p), _mm256_shuffle_epi8(values, _mm256_and_si256(packed, mask)));
    _mm256_storeu_si256((__m256i*)(codes + 32 * (p + 8)), _mm256_shuffle_epi8(values, high));
  }
#else
  const __m128i values = _mm_loadu_si128((const __m128i*)table);
  const __m128i mask = _mm_set1_epi8(15);
  for (int p = 0; p < 16; ++p) {
    const __m128i packed = _mm_loadu_si128((const __m128i*)(planes + 16 * p));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
    _mm_storeu_si128((__m128i*)(codes + 16 * p), _mm_shuffle_epi8(values, _mm_and_si128(packed, mask)));
    _mm_storeu_si128((__m128i*)(codes + 16 * (p + 16)), _mm_shuffle_epi8(values, high));
  }
#endif
}

// Sub-block scales and minima of Q4_K and Q5_K: twelve packed bytes per row, [12][16].
HEADRACE_INLINE void k_scales(const uint8_t* record, UnpackedStrip* out, int64_t first_block) {
  Floats16 d, dmin;
  widen_halves(record, &d);
  widen_halves(record + 32, &dmin);
  const uint8_t* packed = record + 64;
  float* scales = out->scales + first_block * kStripRows;
  float* minima = out->minima + first_block * kStripRows;
  for (int j = 0; j < 8; ++j) {
    Bytes16 scale, min;
    if (j < 4) {
      LOAD(Bytes16, a, packed + 16 * j);
      LOAD(Bytes16, b, packed + 16 * (j + 4));
      scale = a & 63;
      min = b & 63;
    } else {
      LOAD(Bytes16, low, packed + 16 * (j + 4));
      LOAD(Bytes16, a, packed + 16 * (j - 4));
      LOAD(Bytes16, b, packed + 16 * j);
      scale = (low & 15) | ((a >> 6) << 4);
      min = (low >> 4) | ((b >> 6) << 4);
    }
    STORE(scales + j * kStripRows, d * __builtin_convertvector(scale, Floats16));
    STORE(minima + j * kStripRows, -(dmin * __builtin_convertvector(min, Floats16)));
  }
}

// kCodes false: the scales alone.
template <bool kCodes>
HEADRACE_INLINE void unpack_record(RecordFormat format, const uint8_t* r, int64_t b, UnpackedStrip* out) {
  uint8_t* codes = out->codes + b * kBlockCodes;
  float* scales = out->scales + b * kStripRows;
  float* minima = out->minima + b * kStripRows;
  Floats16 d;
  switch (format) {
    case RecordFormat::kQ4_0:
      widen_halves(r, &d);
      STORE(scales, d);
      if (kCodes) unpack_nibbles(r + 32, codes);
      return;
    case RecordFormat::kQ4_1:
      widen_halves(r, &d);
      STORE(scales, d);
      widen_halves(r + 32, &d);
      STORE(minima, d);
      if (kCodes) unpack_nibbles(r + 64, codes);
      return;
    case RecordFormat::kQ5_0:
      widen_halves(r, &d);
      STORE(scales, d);
      if (kCodes) unpack_fives(r + 32, r + 96, codes);
      return;
    case RecordFormat::kQ5_1:
      widen_halves(r, &d);
      STORE(scales, d);
      widen_halves(r + 32, &d);
      STORE(minima, d);
      if (kCodes) unpack_fives(r + 64, r + 128, codes);
      return;
    case RecordFormat::kQ8_0:
      widen_halves(r, &d);
      STORE(scales, d);
      if (kCodes) unpack_bytes(r + 32, codes);
      return;
    case RecordFormat::kIQ4_NL:
      widen_halves(r, &d);
      STORE(scales, d);
      if (kCodes) unpack_table(kIq4Codes, r + 32, codes);
      return;
    case RecordFormat::kMXFP4:
      for (int i = 0; i < kStripRows; ++i) {
        // 2^(e - 128); the two smallest are subnormal.
        const uint32_t e = r[i];
        const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        memcpy(scales + i, &bits, sizeof bits);
      }
      if (kCodes) unpack_table(kFp4Codes, r + 16, codes);
      return;
    case RecordFormat::kQ4_K:
      k_scales(r, out, b);
      for (int j = 0; kCodes && j < 8; ++j) unpack_nibbles(r + 256 + 256 * j, codes + kBlockCodes * j);
      return;
    case RecordFormat::kQ5_K:
      k_scales(r, out, b);
      for (int j = 0; kCodes && j < 8; ++j) {
        unpack_fives(r + 256 + 320 * j, r + 256 + 320 * j + 64, codes + kBlockCodes * j);
      }
      return;
    case RecordFormat::kIQ4_XS: {
      widen_halves(r, &d);
      for (int j = 0; j < 8; ++j) {
        float factors[16];
        for (int i = 0; i < kStripRows; ++i) {
          const int high = r[32 + 2 * i + j / 4] >> (2 * (j % 4)) & 3;
          const int low = r[64 + 16 * (j / 2) + i] >> (4 * (j % 2)) & 15;
          factors[i] = (float)((low | high << 4) - 32);
        }
        LOAD(Floats16, factor, factors);
        STORE(scales + j * kStripRows, d * factor);
        if (kCodes) unpack_table(kIq4Codes, r + 128 + 256 * j, codes + kBlockCodes * j);
      }
      return;
    }
    case RecordFormat::kQ6_K:
      widen_halves(r, &d);
      scales = out->scales + b * 2 * kStripRows;
      for (int j = 0; j < 16; ++j) {
        LOAD(SignedBytes16, scale, r + 32 + 16 * j);
        STORE(scales + j * kStripRows, d * __builtin_convertvector(scale, Floats16));
      }
      for (int j = 0; kCodes && j < 8; ++j) {
        unpack_sixes(r + 288 + 384 * j, r + 288 + 384 * j + 128, codes + kBlockCodes * j);
      }
      return;
    case RecordFormat::kQ3_K:
      widen_halves(r, &d);
      scales = out->scales + b * 2 * kStripRows;
      for (int j = 0; j < 16; ++j) {
        LOAD(Bytes16, low, r + 32 + 16 * (j % 8));
        LOAD(Bytes16, high, r + 32 + 16 * (8 + j % 4));
        const Bytes16 bits = (j < 8 ? low & 15 : low >> 4) | (((high >> (2 * (j / 4))) & 3) << 4);
        STORE(scales + j * kStripRows, d * (__builtin_convertvector(bits, Floats16) - 32.0f));
      }
      for (int j = 0; kCodes && j < 8; ++j) {
        unpack_threes(r + 224 + 192 * j, r + 224 + 192 * j + 64, codes + kBlockCodes * j);
      }
      return;
    case RecordFormat::kQ2_K: {
      Floats16 dmin;
      widen_halves(r, &d);
      widen_halves(r + 32, &dmin);
      scales = out->scales + b * 2 * kStripRows;
      minima = out->minima + b * 2 * kStripRows;
      for (int j = 0; j < 16; ++j) {
        LOAD(Bytes16, packed, r + 64 + 16 * j);
        STORE(scales + j * kStripRows, d * __builtin_convertvector(packed & 15, Floats16));
        STORE(minima + j * kStripRows, -(dmin * __builtin_convertvector(packed >> 4, Floats16)));
      }
      for (int j = 0; kCodes && j < 8; ++j) unpack_twos(r + 320 + 128 * j, codes + kBlockCodes * j);
      return;
    }
    case RecordFormat::kBlocks: return;
  }
}

// The file's own blocks, row by row.
void unpack_file_blocks(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  const int64_t scales_per_block = layout.scale_kind == ScaleKind::kTwo ? 2 * kStripRows : kStripRows;
  for (int64_t n = 0; n < num_records; ++n, record += layout.record_bytes) {
    const int64_t b = n * layout.record_blocks;
    for (int row = 0; row < kStripRows; ++row) {
      layout.unpack_block(record + row * layout.file_block_bytes, out->codes + b * kBlockCodes + 4 * row,
                          out->scales + b * scales_per_block + row);
    }
  }
#if HEADRACE_ISA_LEVEL == 2
  for (int64_t i = 0; i < num_records * layout.record_blocks * 8; ++i) {
    LOAD(Bytes64, codes, out->codes + 64 * i);
    STORE(out->codes + 64 * i, codes ^ kSignFlip);
  }
#endif
}

template <RecordFormat kFormat, bool kCodes>
void unpack_all(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  for (int64_t n = 0; n < num_records; ++n) {
    unpack_record<kCodes>(kFormat, record + n * layout.record_bytes, n * layout.record_blocks, out);
  }
}

}  // namespace

void unpack_records(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  switch (layout.format) {
#define CASE(name) \
  case RecordFormat::name: return unpack_all<RecordFormat::name, true>(layout, record, num_records, out)
    CASE(kQ4_0);
    CASE(kQ4_1);
    CASE(kQ5_0);
    CASE(kQ5_1);
    CASE(kQ8_0);
    CASE(kQ2_K);
    CASE(kQ3_K);
    CASE(kQ4_K);
    CASE(kQ5_K);
    CASE(kQ6_K);
    CASE(kIQ4_NL);
    CASE(kIQ4_XS);
    CASE(kMXFP4);
#undef CASE
    case RecordFormat::kBlocks: return unpack_file_blocks(layout, record, num_records, out);
  }
}

void unpack_scales(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  switch (layout.format) {
#define CASE(name) \
  case RecordFormat::name: return unpack_all<RecordFormat::name, false>(layout, record, num_records, out)
    CASE(kQ4_0);
    CASE(kQ4_1);
    CASE(kQ5_0);
    CASE(kQ5_1);
    CASE(kQ8_0);
    CASE(kQ2_K);
    CASE(kQ3_K);
    CASE(kQ4_K);
    CASE(kQ5_K);
    CASE(kQ6_K);
    CASE(kIQ4_NL);
    CASE(kIQ4_XS);
    CASE(kMXFP4);
#undef CASE
    case RecordFormat::kBlocks: return;
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
