// Unpacking records of a strip into codes and float scales.
#pragma once

#include "cpu/kernels/isa.h"
#include "cpu/kernels/quantized_kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// One strip's chunk, unpacked; minima are what is added to scale * code.
struct alignas(64) UnpackedStrip {
  uint8_t codes[kMaxChunkBlocks * kBlockCodes];
  float scales[kMaxChunkBlocks * 2 * kStripRows];
  float minima[kMaxChunkBlocks * 2 * kStripRows];
};

// Unpacks num_records records of a strip from `record` on, skipping the pair's other strip;
// they fit into a chunk.
// Signed codes are stored XORed with kSignFlip.
void unpack_records(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out);

// Asks for a line of weights that may lie beyond their end.
HEADRACE_INLINE void fetch(const uint8_t* at) { __builtin_prefetch(at, 0, 3); }

// What signed bytes are stored XORed with.
constexpr uint8_t kSignFlip = kUnsignedDot ? 0x80 : 0;

// Unpacked codes of IQ4_NL's and IQ4_XS's four bits.
#define HEADRACE_SIGNED(value) (uint8_t)((value) ^ kSignFlip)
constexpr uint8_t kIq4Codes[16] = {
    HEADRACE_SIGNED(-127), HEADRACE_SIGNED(-104), HEADRACE_SIGNED(-83), HEADRACE_SIGNED(-65),
    HEADRACE_SIGNED(-49),  HEADRACE_SIGNED(-35),  HEADRACE_SIGNED(-22), HEADRACE_SIGNED(-10),
    HEADRACE_SIGNED(1),    HEADRACE_SIGNED(13),   HEADRACE_SIGNED(25),  HEADRACE_SIGNED(38),
    HEADRACE_SIGNED(53),   HEADRACE_SIGNED(69),   HEADRACE_SIGNED(89),  HEADRACE_SIGNED(113)};
// Doubled FP4 values.
constexpr uint8_t kSignedFp4Codes[16] = {
    HEADRACE_SIGNED(0),  HEADRACE_SIGNED(1),  HEADRACE_SIGNED(2),  HEADRACE_SIGNED(3),
    HEADRACE_SIGNED(4),  HEADRACE_SIGNED(6),  HEADRACE_SIGNED(8),  HEADRACE_SIGNED(12),
    HEADRACE_SIGNED(0),  HEADRACE_SIGNED(-1), HEADRACE_SIGNED(-2), HEADRACE_SIGNED(-3),
    HEADRACE_SIGNED(-4), HEADRACE_SIGNED(-6), HEADRACE_SIGNED(-8), HEADRACE_SIGNED(-12)};
#undef HEADRACE_SIGNED
// The same plus 16.
constexpr uint8_t kFp4Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
