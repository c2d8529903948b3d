// How a product of a block-format weight is computed, where several ways have the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels/quantized_kernels.h"

namespace headrace {

struct LinearChoice {
  static constexpr int32_t kRowStep = 12;  // a multiple of every instruction set's largest tile
  static constexpr int32_t kMostRunPairs = 64;

  Unpack unpack = Unpack::kByRows;
  int32_t run_pairs = 0;  // pairs of strips of a task; 0: the rule of packed_quantized.cpp holds
  int32_t task_rows = 0;  // rows of a task, a multiple of kRowStep, at most kOutlierGroupRows

  bool is_rule() const { return run_pairs == 0; }
  // What a table may say; the rule is none of it.
  bool is_valid() const {
    return unpack != Unpack::kByRows && run_pairs >= 1 && run_pairs <= kMostRunPairs && task_rows >= kRowStep &&
           task_rows <= kOutlierGroupRows && task_rows % kRowStep == 0;
  }
  bool operator==(const LinearChoice&) const = default;
};

// Numbers of rows are told apart up to powers of two: 1, 2, 3..4, 5..8, and so on, and 257 or more.
constexpr size_t kRowBuckets = 10;
constexpr size_t row_bucket(int64_t rows) {
  size_t bucket = 0;
  while (bucket + 1 < kRowBuckets && (int64_t{1} << bucket) < rows) ++bucket;
  return bucket;
}
// The largest number of rows of a bucket (of the last one: the number it is measured with).
constexpr int32_t bucket_rows(size_t bucket) { return int32_t{1} << bucket; }

using ChoicesByRows = std::array<LinearChoice, kRowBuckets>;

}  // namespace headrace
