// Rows of whole numbers under scales and zero points, brought into the blocks of INT4_G* and INT8_G*.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/column_order.h"
#include "tensor/dtype.h"

namespace headrace {

// How the columns of a weight are divided into blocks.
struct IntegerGroups {
  DType dtype = DType::kINT4_G32;
  std::vector<uint32_t> group_of_block;
  ColumnOrder column_order;  // null: columns as they are

  uint64_t block_size() const { return static_cast<uint64_t>(dtype_info(dtype).block_size); }
  uint64_t column(uint64_t stored) const {
    return column_order == nullptr ? stored : static_cast<uint64_t>((*column_order)[stored]);
  }
};

// Blocks of 128 columns where that many belong to one group throughout, else of 32. group_of_column need not ascend:
// columns are ordered by it, those of one group staying as they are. bits: 4 or 8. kUnsupported, under `place`, for groups
// that are not whole blocks of 32.
Result<IntegerGroups> divide_columns(const std::string& place, int bits, std::span<const int32_t> group_of_column);
// Groups of group_size columns (at least as many as there are: one group).
Result<IntegerGroups> divide_columns(const std::string& place, int bits, uint64_t cols, uint64_t group_size);

// One row in the order of the columns as they are stored. codes: 0..15 for INT4, two's complement bytes for INT8;
// scales and zeros are of the row's groups.
void write_row(const IntegerGroups& groups, std::span<const uint8_t> codes, const float* scales, const int32_t* zeros,
               std::byte* out);

}  // namespace headrace
