// Unpacking records of a strip. Vectors of 64 bytes (one group of 4 k in 16 rows) in the compilers' vector extension:
// each instruction set gets them in registers of its own width.
#include "cpu/kernels/quantized_unpack.h"

#include <string.h>

#include "cpu/kernels/quantized_scales.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

typedef uint8_t Bytes64 __attribute__((vector_size(64)));

// Four-bit codes of a block: byte i of plane p holds groups p (low) and p + 4 (high).
HEADRACE_INLINE void unpack_nibbles(const uint8_t* planes, uint8_t* codes) {
  for (int p = 0; p < 4; ++p) {
    HEADRACE_LOAD(Bytes64, packed, planes + 64 * p);
    HEADRACE_STORE(codes + 64 * p, packed & 15);
    HEADRACE_STORE(codes + 64 * (p + 4), packed >> 4);
  }
}

// Four-bit codes and a fifth bit: bit g of byte i of `high` belongs to group g.
HEADRACE_INLINE void unpack_fives(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  HEADRACE_LOAD(Bytes64, bits, high);
  for (int p = 0; p < 4; ++p) {
    HEADRACE_LOAD(Bytes64, packed, planes + 64 * p);
    HEADRACE_STORE(codes + 64 * p, (packed & 15) | (((bits >> p) & 1) << 4));
    HEADRACE_STORE(codes + 64 * (p + 4), (packed >> 4) | (((bits >> (p + 4)) & 1) << 4));
  }
}

// Four-bit codes and two more bits: bits 2q of byte i of high plane h belong to group 4h + q.
HEADRACE_INLINE void unpack_sixes(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  HEADRACE_LOAD(Bytes64, bits0, high);
  HEADRACE_LOAD(Bytes64, bits1, high + 64);
  for (int p = 0; p < 4; ++p) {
    HEADRACE_LOAD(Bytes64, packed, planes + 64 * p);
    HEADRACE_STORE(codes + 64 * p, (packed & 15) | (((bits0 >> (2 * p)) & 3) << 4));
    HEADRACE_STORE(codes + 64 * (p + 4), (packed >> 4) | (((bits1 >> (2 * p)) & 3) << 4));
  }
}

HEADRACE_INLINE void unpack_twos(const uint8_t* planes, uint8_t* codes) {
  for (int h = 0; h < 2; ++h) {
    HEADRACE_LOAD(Bytes64, bits, planes + 64 * h);
    for (int q = 0; q < 4; ++q) HEADRACE_STORE(codes + 64 * (4 * h + q), (bits >> (2 * q)) & 3);
  }
}

HEADRACE_INLINE void unpack_threes(const uint8_t* high, const uint8_t* planes, uint8_t* codes) {
  HEADRACE_LOAD(Bytes64, third, high);
  for (int h = 0; h < 2; ++h) {
    HEADRACE_LOAD(Bytes64, bits, planes + 64 * h);
    for (int q = 0; q < 4; ++q) {
      const int g = 4 * h + q;
      HEADRACE_STORE(codes + 64 * g, ((bits >> (2 * q)) & 3) | (((third >> g) & 1) << 2));
    }
  }
}

HEADRACE_INLINE void unpack_bytes(const uint8_t* planes, uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    HEADRACE_LOAD(Bytes64, packed, planes + 64 * g);
    HEADRACE_STORE(codes + 64 * g, packed ^ kSignFlip);
  }
}

// Four-bit codes through a table of 16 bytes.
HEADRACE_INLINE void unpack_table(const uint8_t* table, const uint8_t* planes, uint8_t* codes) {
  constexpr int kVectorBytes = 4 * kLanes;
  const IntVec mask = bytes_set1(15);
  for (int at = 0; at < 256; at += kVectorBytes) {
    const IntVec packed = int_load(planes + at);
    int_store(codes + at, look_up(table, bits_and(packed, mask)));
    int_store(codes + 256 + at, look_up(table, bits_and(bits_right(packed, 4), mask)));
  }
}

// Codes of the record r. Its planes follow its scales.
template <RecordFormat F>
HEADRACE_INLINE void record_codes(const uint8_t* r, uint8_t* codes) {
  if constexpr (F == RecordFormat::kQ4_0) {
    unpack_nibbles(r + 32, codes);
  } else if constexpr (F == RecordFormat::kQ4_1) {
    unpack_nibbles(r + 64, codes);
  } else if constexpr (F == RecordFormat::kQ5_0) {
    unpack_fives(r + 32, r + 96, codes);
  } else if constexpr (F == RecordFormat::kQ5_1) {
    unpack_fives(r + 64, r + 128, codes);
  } else if constexpr (F == RecordFormat::kQ8_0) {
    unpack_bytes(r + 32, codes);
  } else if constexpr (F == RecordFormat::kIQ4_NL) {
    unpack_table(kIq4Codes, r + 32, codes);
  } else if constexpr (F == RecordFormat::kMXFP4) {
    unpack_table(kFp4Codes, r + 16, codes);
  } else if constexpr (F == RecordFormat::kNVFP4 || F == RecordFormat::kNVFP4_G64) {
    constexpr int kScales = F == RecordFormat::kNVFP4 ? 64 : 128;
    for (int j = 0; j < 2; ++j) unpack_table(kSignedFp4Codes, r + kScales + 256 * j, codes + kBlockCodes * j);
  } else if constexpr (F == RecordFormat::kINT4_G32 || F == RecordFormat::kINT4_G128) {
    constexpr int kBlocks = F == RecordFormat::kINT4_G32 ? 1 : 4;
    for (int j = 0; j < kBlocks; ++j) unpack_nibbles(r + 80 + 256 * j, codes + kBlockCodes * j);
  } else if constexpr (F == RecordFormat::kINT8_G32 || F == RecordFormat::kINT8_G128) {
    constexpr int kBlocks = F == RecordFormat::kINT8_G32 ? 1 : 4;
    for (int j = 0; j < kBlocks; ++j) unpack_bytes(r + 96 + 512 * j, codes + kBlockCodes * j);
  } else {
    for (int j = 0; j < 8; ++j, codes += kBlockCodes) {
      if constexpr (F == RecordFormat::kQ4_K) unpack_nibbles(r + 256 + 256 * j, codes);
      if constexpr (F == RecordFormat::kQ5_K) unpack_fives(r + 256 + 320 * j, r + 256 + 320 * j + 64, codes);
      if constexpr (F == RecordFormat::kIQ4_XS) unpack_table(kIq4Codes, r + 128 + 256 * j, codes);
      if constexpr (F == RecordFormat::kQ6_K) unpack_sixes(r + 288 + 384 * j, r + 288 + 384 * j + 128, codes);
      if constexpr (F == RecordFormat::kQ3_K) unpack_threes(r + 224 + 192 * j, r + 224 + 192 * j + 64, codes);
      if constexpr (F == RecordFormat::kQ2_K) unpack_twos(r + 320 + 128 * j, codes);
    }
  }
}

// The file's own blocks, row by row.
void unpack_file_blocks(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  const int64_t scales_per_block = layout.scale_kind == ScaleKind::kTwo ? 2 * kStripRows : kStripRows;
  for (int64_t n = 0; n < num_records; ++n, record += kTaskStrips * layout.record_bytes) {
    const int64_t b = n * layout.record_blocks;
    for (int row = 0; row < kStripRows; ++row) {
      layout.unpack_block(record + row * layout.file_block_bytes, out->codes + b * kBlockCodes + 4 * row,
                          out->scales + b * scales_per_block + row);
    }
  }
  if constexpr (kSignFlip == 0) return;
  for (int64_t i = 0; i < num_records * layout.record_blocks * 8; ++i) {
    HEADRACE_LOAD(Bytes64, codes, out->codes + 64 * i);
    HEADRACE_STORE(out->codes + 64 * i, codes ^ kSignFlip);
  }
}

template <RecordFormat F>
void unpack_all(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  const int64_t scales_per_block =
      layout.scale_kind == ScaleKind::kTwo || layout.scale_kind == ScaleKind::kTwoMin ? 2 * kStripRows : kStripRows;
  for (int64_t n = 0; n < num_records; ++n) {
    const int64_t b = n * layout.record_blocks;
    const uint8_t* r = record + n * kTaskStrips * layout.record_bytes;
    record_scales<F>(r, out->scales + b * scales_per_block, out->minima + b * scales_per_block);
    record_codes<F>(r, out->codes + b * kBlockCodes);
  }
}

}  // namespace

void unpack_records(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out) {
  switch (layout.format) {
#define CASE(name) \
  case RecordFormat::name: return unpack_all<RecordFormat::name>(layout, record, num_records, out)
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
    CASE(kINT4_G32);
    CASE(kINT4_G128);
    CASE(kINT8_G32);
    CASE(kINT8_G128);
    CASE(kNVFP4);
    CASE(kNVFP4_G64);
#undef CASE
    case RecordFormat::kBlocks: return unpack_file_blocks(layout, record, num_records, out);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
