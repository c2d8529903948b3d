// The kernels of block-format linear layers, as one instruction set's part of the kernel table.
//
// A weight is cut into strips of 16 output rows. A strip is a sequence of records along K, each holding the same file
// block of the 16 rows with its fields interleaved (see packed_quantized_layout.h). Strips come in pairs, whose records
// alternate, so that a task reads one run of memory; a last strip without a partner is joined by one of zeros. A kernel unpacks a chunk of
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
  kOne,           // scales [16]
  kOneMin,        // scales [16], minima [16]
  kTwo,           // scales [2][16], for k 0..15 and 16..31
  kTwoMin,        // scales [2][16], minima [2][16]
  kOneMinSigned,  // as kOneMin, with codes kSigned8
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
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kINT4_G32,
  kINT4_G128,
  kINT8_G32,
  kINT8_G128,
  kNVFP4,
  kNVFP4_G64,
  kBlocks,
};

// Unpacks one row of one file block: codes [block_size / 32][8][stride 64][4] from codes on, scales [blocks][1 or 2]
// with a stride of 16 floats.
using UnpackFileBlock = void (*)(const uint8_t* block, uint8_t* codes, float* scales);

struct QuantizedLayout {
  RecordFormat format;
  ScaleKind scale_kind;
  CodeKind code_kind;
  int32_t offset_shift;   // -1: no offset
  int32_t record_blocks;  // blocks of 32 k in one record
  int64_t record_bytes;
  int64_t file_block_bytes;
  UnpackFileBlock unpack_block;  // kBlocks
};

// Activations as int8 codes with a scale per 32 and their sums, in the order the kernels read them: tiles of
// tile_rows rows (the last has what is left), in a tile block after block, and of a block of R rows
//   int8 codes [8 groups of 4 k][R][4], then arrays [R] of 4 bytes in the order of ActivationField.
// So a tile that starts with row r0 is at bytes + r0 * blocks * kActivationBytes.
struct QuantizedPlane {
  int64_t blocks;     // in a row
  int64_t tile_rows;  // at most QuantizedKernels::tile_rows
  uint8_t* bytes;
};

enum ActivationField {
  kScale,     // float
  kSum,       // float: scale times the sum of the codes
  kLowSum,    // float: the same of codes 0..15
  kHighSum,   // and 16..31
  kMinusSum,  // int32: minus the sum of the codes
  kMinusLow,
  kMinusHigh,
  kActivationFields,
};
constexpr int kActivationBytes = kQuantBlock + 4 * kActivationFields;  // of one row in one block

// The second terms of outlier blocks, ordered so that rows which share a block meet its weights together. Rows are
// taken in groups of kOutlierGroupRows; a group's entries lie by block, then by row, and those of one block in tiles
// of tile_rows entries (the last has what is left), laid out like the blocks of QuantizedPlane.
struct OutlierPlane {
  int64_t per_row;  // entries of a row
  uint8_t* bytes;   // group g's entries start at entry g * kOutlierGroupRows * per_row
  int32_t* rows;    // [entries] row in the group
  int32_t* starts;  // [groups][blocks + 1] first entry of a block, counted from the group's first
};
constexpr int64_t kOutlierGroupRows = 528;  // a multiple of every instruction set's tile

// Where a task unpacks codes. Every way has the same bits.
enum class Unpack : int32_t {
  kByRows,     // in registers where rows are few
  kRegisters,  // in registers, again for each tile of rows; to memory for formats that have no such code
  kMemory,     // to memory, once
};

// One task: a pair of strips times a range of rows within one outlier group.
struct QuantizedTask {
  const QuantizedLayout* layout;
  const uint8_t* pair;  // [blocks / record_blocks][2] records
  int64_t blocks;       // of 32 k in a row
  QuantizedPlane first;
  QuantizedPlane second;  // a second term in every block; bytes null: only in outlier blocks
  OutlierPlane outliers;  // where second has no bytes
  int64_t first_row;      // a multiple of the planes' tile_rows
  int64_t num_rows;       // at most the rows the scratch was sized for
  const float* bias;      // of the first column, or null
  float* y;               // row first_row, first column
  int64_t y_stride;
  int32_t num_columns;  // 1..32 that exist
  bool accumulate;
  bool starts;          // no task before it has asked for the weights' first bytes
  bool fetch_in_steps;  // one or two rows ask for weights as Fetch::kInSteps of quantized_groups.h says
  Unpack unpack;
  uint8_t* scratch;  // 64-byte aligned, quantized_scratch_bytes(num_rows)
};

struct QuantizedKernels {
  int32_t tile_rows;  // most of a plane, and those of an outlier plane
  int32_t few_rows;   // tasks of up to so many rows stream the weights
  int64_t (*scratch_bytes)(int64_t num_rows);
  void (*run_task)(const QuantizedTask& task);
  // Quantizes the num_rows rows x [num_rows][first.blocks * 32] of the tile that starts with row first_row. With
  // second.bytes a second term is made of every block; else records of the per_row outlier blocks of each row are
  // written, by block, to records [rows][per_row][kActivationBytes] with their block numbers in index [rows][per_row].
  // scratch has kQuantizeScratch * first.blocks floats.
  void (*quantize_tile)(const float* x, int64_t first_row, int32_t num_rows, const QuantizedPlane& first,
                        const QuantizedPlane& second, int64_t per_row, uint8_t* records, int32_t* index,
                        float* scratch);
};
constexpr int kQuantizeScratch = 8;

}  // namespace headrace
