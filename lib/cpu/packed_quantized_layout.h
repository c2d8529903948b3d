// How block formats are laid out in strips, and the way there and back.
//
// Formats with vector unpacking: a record holds one file block of 16 rows. First the block's scale fields in the
// file's order, each element interleaved over the rows: [elements][16 rows]. Then per 32 k the codes as bit planes
// over positions (row, k % 4) of the group g = k / 4: an optional high plane and a low plane,
//   one-bit high plane  [64]: bit g
//   two-bit plane   [2][64]: byte of plane g / 4, bits 2 (g % 4)
//   four-bit plane  [4][64]: byte of plane g % 4, low half for g < 4
//   eight-bit plane [8][64]: byte of plane g
// Q3_K's two low bits come after its one-bit plane, Q6_K's two high bits before its four-bit plane.
// Other formats: a record holds the 16 rows' file blocks one after the other.
// Either way a record has the bytes of 16 file blocks.
#pragma once

#include <cstdint>

#include "cpu/kernels/quantized_kernels.h"
#include "tensor/dtype.h"

namespace headrace {

// The layout of a block format; null for other types. A constant.
const QuantizedLayout* quantized_layout(DType dtype);

// True for the formats whose codes kernels can unpack in registers (kernels/quantized_few_rows.h).
bool unpacks_in_registers(RecordFormat format);

// Writes file blocks of 16 rows, `row_stride` bytes apart, as one record. Rows from num_rows on are zeros.
void pack_record(const QuantizedLayout& layout, const uint8_t* rows, int64_t row_stride, int64_t num_rows,
                 uint8_t* record);

// The file block of one row of a record.
void extract_block(const QuantizedLayout& layout, const uint8_t* record, int row, uint8_t* block);

// The unpacking function of a format without vector unpacking, or null.
UnpackFileBlock file_block_unpacker(DType dtype);

}  // namespace headrace
