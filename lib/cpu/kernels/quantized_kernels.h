// The kernels of block-format linear layers, as one instruction set's part of the kernel table.
//
// A weight is cut into strips of 16 output rows. A strip is a sequence of records along K, each holding the same file
// block of the 16 rows with its fields interleaved (see packed_quantized_layout.h). A kernel unpacks a chunk of
// records into codes and float scales, then multiplies any number of activation rows with it.
//
// Codes of a chunk: [block of 32 k][8 groups][16 rows][4 k], one byte each; lanes of a vector are output rows.
//
// The arithmetic of one output, the same for every instruction set and every number of rows. Per block b of 32 k, in
// order, with exact integer sums i:
//   one scale:   acc = fma(a[b], w[b] * float(i), acc)
//   two scales:  acc = fma(a[b], fma(w1[b], float(i1), w0[b] * float(i0)), acc)    (i0, i1: halves of 16 k)
//   with minima: acc = fma(m[b], s[b], acc) after it, once per minimum            (s: a[b] times the sum of the codes)
// The second terms of the row's outlier blocks run through the same formulas into an accumulator of their own;
// y = (acc + outlier acc) + bias, and the old y is added last.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace headrace {

constexpr int kStripRows = 16;
constexpr int kQuantBlock = 32;
constexpr int kBlockCodes = kQuantBlock * kStripRows;  // bytes of one unpacked block of a strip
constexpr int kMaxRecordBlocks = 8;                    // blocks of 32 in the longest record
constexpr int kMaxChunkBlocks = 16;                    // blocks unpacked at once
constexpr int kTaskStrips = 2;                         // strips of one task
constexpr int kTaskColumns = kTaskStrips * kStripRows;

// Float scales of an unpacked block.
enum class ScaleKind : int32_t {
  kOne,     // scales [16]
  kOneMin,  // scales [16], minima [16]
  kTwo,     // scales [2][16], for k 0..15 and 16..31
  kTwoMin,  // scales [2][16], minima [2][16]
};

// Range of the unpacked codes. Unsigned ones stand for code - (1 << offset_shift), or for themselves under kOneMin
// and kTwoMin.
enum class CodeKind : int32_t {
  kUpTo15,
  kUpTo31,
  kUpTo63,
  kSigned8,  // signed bytes, -128..127
};

// How records are unpacked: by vector code, or kBlocks: by the layout's own function over the file's blocks.
enum class RecordFormat : int32_t {
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kMXFP4, kBlocks,
};

// Unpacks one row of one file block: codes [block_size / 32][8][stride 64][4] from codes on, scales [blocks][1 or 2]
// with a stride of 16 floats.
using UnpackFileBlock = void (*)(const uint8_t* block, uint8_t* codes, float* scales);

struct QuantizedLayout {
  RecordFormat format;
  ScaleKind scale_kind;
  CodeKind code_kind;
  int32_t offset_shift;    // -1: no offset
  int32_t record_blocks;   // blocks of 32 k in one record
  int64_t record_bytes;
  int64_t file_block_bytes;
  UnpackFileBlock unpack_block;  // kBlocks
};

// Rows of int8 codes with a scale per 32 and their sums; `blocks` a row, rows one after the other.
struct QuantizedPlane {
  int64_t blocks;
  int8_t* codes;        // [rows][blocks][32], -127..127
  float* scales;        // [rows][blocks]
  float* block_sums;    // [rows][blocks]: scale times the sum of the codes
  float* half_sums;     // [rows][blocks][2]: the same of codes 0..15 and 16..31
  int32_t* block_minus; // [rows][blocks]: minus the sum of the codes
  int32_t* half_minus;  // [rows][blocks][2]
};

// One task: up to two strips times a range of rows.
struct QuantizedTask {
  const QuantizedLayout* layout;
  const uint8_t* strips;
  int64_t strip_bytes;
  int32_t num_strips;  // 1..kTaskStrips
  int64_t blocks;      // of 32 k in a row
  QuantizedPlane first;
  QuantizedPlane second;           // outlier blocks; second.blocks == blocks: of every block, in order
  const int32_t* second_index;     // [rows][second.blocks] ascending block numbers
  int64_t first_row;
  int64_t num_rows;                // at most the rows the scratch was sized for
  const float* bias;               // of the first column, or null
  float* y;                        // row first_row, first column
  int64_t y_stride;
  int32_t num_columns;             // 1..32 that exist
  bool accumulate;
  uint8_t* scratch;                // 64-byte aligned, quantized_scratch_bytes(num_rows)
};

struct QuantizedKernels {
  int64_t (*scratch_bytes)(int64_t num_rows);
  void (*run_task)(const QuantizedTask& task);
  // Quantizes one row of `first.blocks` * 32 values into row `row` of the planes; amax [blocks] is scratch.
  void (*quantize_row)(const float* x, int64_t row, const QuantizedPlane& first, const QuantizedPlane& second,
                       int32_t* second_index, int32_t* amax);
};

}  // namespace headrace
