// Where a tile's weights come from: codes unpacked into scratch, or packed planes unpacked in registers.
#pragma once

#include "cpu/kernels/quantized_unpack.h"
#include "cpu/kernels/quantized_vec.h"

#define HEADRACE_INLINE_MEMBER __attribute__((always_inline)) inline

namespace headrace::HEADRACE_ISA_NAMESPACE {

// From the first lane of a tile to that of its vector v: strip apart for another strip, unit apart for a row.
HEADRACE_INLINE constexpr int64_t lane_step(int v, int64_t strip, int64_t unit) {
  return v * kLanes / kStripRows * strip + v * kLanes % kStripRows * unit;
}
constexpr int64_t kStripFloats = (int64_t)sizeof(UnpackedStrip) / 4;

// Weights are read once and in order, faster than the hardware looks ahead: the first reader of a line asks for a later one.
enum class Fetch {
  kNot,
  kFar,      // kAheadBytes further on, into the first-level cache
  kInSteps,  // that one into the second level, and from there kStepBytes further on into the first
};
constexpr int64_t kAheadBytes = 8192, kStepBytes = 2048;
template <Fetch kFetch>
HEADRACE_INLINE void fetch_ahead(const uint8_t* at) {
  if constexpr (kFetch == Fetch::kFar) fetch(at + kAheadBytes);
  if constexpr (kFetch == Fetch::kInSteps) {
    __builtin_prefetch(at + kAheadBytes, 0, 2);
    fetch(at + kStepBytes);
  }
}

// group(block, v, g): four codes of each lane of vector v, group g of a block of the chunk.
struct UnpackedGroups {
  const uint8_t* codes;

  HEADRACE_INLINE_MEMBER IntVec group(int64_t block, int v, int g) const {
    return int_load(codes + block * kBlockCodes + lane_step(v, sizeof(UnpackedStrip), 4) + 64 * g);
  }
};

// Bytes before the planes of a record, bits of a code and blocks of a record; kinds of the layout that has them.
template <RecordFormat F>
struct PackedFormat;
#define HEADRACE_PACKED_FORMAT(name, header, bits, record, scale, code)    \
  template <>                                                              \
  struct PackedFormat<RecordFormat::name> {                                \
    static constexpr int64_t kHeader = header;                             \
    static constexpr int kBits = bits;                                     \
    static constexpr int64_t kRecordBlocks = record;                       \
    static constexpr int64_t kBlockBytes = 64 * bits;                      \
    static constexpr int64_t kRecordBytes = header + record * kBlockBytes; \
    static constexpr ScaleKind kScale = ScaleKind::scale;                  \
    static constexpr CodeKind kCode = CodeKind::code;                      \
  }
HEADRACE_PACKED_FORMAT(kQ4_0, 32, 4, 1, kOne, kUpTo15);
HEADRACE_PACKED_FORMAT(kQ4_1, 64, 4, 1, kOneMin, kUpTo15);
HEADRACE_PACKED_FORMAT(kQ5_0, 32, 5, 1, kOne, kUpTo31);
HEADRACE_PACKED_FORMAT(kQ5_1, 64, 5, 1, kOneMin, kUpTo31);
HEADRACE_PACKED_FORMAT(kQ8_0, 32, 8, 1, kOne, kSigned8);
HEADRACE_PACKED_FORMAT(kQ4_K, 256, 4, 8, kOneMin, kUpTo15);
HEADRACE_PACKED_FORMAT(kQ5_K, 256, 5, 8, kOneMin, kUpTo31);
HEADRACE_PACKED_FORMAT(kQ6_K, 288, 6, 8, kTwo, kUpTo63);
HEADRACE_PACKED_FORMAT(kIQ4_NL, 32, 4, 1, kOne, kSigned8);
HEADRACE_PACKED_FORMAT(kIQ4_XS, 128, 4, 8, kOne, kSigned8);
HEADRACE_PACKED_FORMAT(kMXFP4, 16, 4, 1, kOne, kUpTo31);
HEADRACE_PACKED_FORMAT(kINT4_G32, 80, 4, 1, kOneMin, kUpTo15);
HEADRACE_PACKED_FORMAT(kINT4_G128, 80, 4, 4, kOneMin, kUpTo15);
HEADRACE_PACKED_FORMAT(kINT8_G32, 96, 8, 1, kOneMinSigned, kSigned8);
HEADRACE_PACKED_FORMAT(kINT8_G128, 96, 8, 4, kOneMinSigned, kSigned8);
HEADRACE_PACKED_FORMAT(kNVFP4, 64, 4, 2, kTwo, kSigned8);
HEADRACE_PACKED_FORMAT(kNVFP4_G64, 128, 4, 2, kTwo, kSigned8);
#undef HEADRACE_PACKED_FORMAT

template <RecordFormat F, Fetch kFetch>
struct PackedGroups {
  using Format = PackedFormat<F>;
  const uint8_t* records;  // the chunk's, moved to the tile's first lane

  HEADRACE_INLINE_MEMBER IntVec group(int64_t block, int v, int g) const {
    const uint8_t* at = records + block / Format::kRecordBlocks * kTaskStrips * Format::kRecordBytes + Format::kHeader +
                        block % Format::kRecordBlocks * Format::kBlockBytes + lane_step(v, Format::kRecordBytes, 4);
    // Each of the block's lines by the first group that reads it.
    constexpr int kGroupLines = Format::kBits == 8 ? 8 : 4;
    const bool new_line = v * kLanes % kStripRows == 0;
    if (new_line && g < kGroupLines) fetch_ahead<kFetch>(at + Format::kBlockBytes - 64 * kGroupLines + 64 * g);
    if (new_line && Format::kBits == 5 && g == 0) fetch_ahead<kFetch>(at);
    if (new_line && Format::kBits == 6 && g % 4 == 0) fetch_ahead<kFetch>(at + 64 * (g / 4));
    if constexpr (Format::kBits == 8) {
      const IntVec codes = int_load(at + 64 * g);
      return kSignFlip ? bits_xor(codes, bytes_set1(kSignFlip)) : codes;
    } else {
      constexpr int64_t kHigh = 64 * (Format::kBits - 4);
      const IntVec packed = int_load(at + kHigh + 64 * (g % 4));
      const IntVec low = bits_and(bits_right(packed, g / 4 * 4), bytes_set1(15));
      if constexpr (F == RecordFormat::kIQ4_NL || F == RecordFormat::kIQ4_XS) {
        return look_up(kIq4Codes, low);
      } else if constexpr (F == RecordFormat::kMXFP4) {
        return look_up(kFp4Codes, low);
      } else if constexpr (F == RecordFormat::kNVFP4 || F == RecordFormat::kNVFP4_G64) {
        return look_up(kSignedFp4Codes, low);
      } else if constexpr (Format::kBits == 5) {
        return bits_or(low, bits_and(bits_right(int_load(at), g - 4), bytes_set1(0x10)));
      } else if constexpr (Format::kBits == 6) {
        const IntVec high = bits_right(int_load(at + 64 * (g / 4)), 2 * (g % 4) - 4);
        return bits_or(low, bits_and(high, bytes_set1(0x30)));
      } else {
        return low;
      }
    }
  }
};

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
