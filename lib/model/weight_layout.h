// Where a weight's rows lie in the tensor of the file that holds them.
#pragma once

#include <cstdint>

#include "model/weights.h"

namespace headrace {

// The first element of a row.
inline uint64_t row_start(const WeightEntry& entry, uint64_t row) {
  if (entry.head_stride == 0) return entry.offset + row * entry.row_stride;
  return entry.offset + row / entry.head_rows * entry.head_stride + row % entry.head_rows * entry.row_stride;
}

}  // namespace headrace
