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

// Unpacks num_records records from `record` on; they fit into a chunk. On AVX-512 signed codes are stored with 128
// added, since its dot product wants unsigned weights.
void unpack_records(const QuantizedLayout& layout, const uint8_t* record, int64_t num_records, UnpackedStrip* out);

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
