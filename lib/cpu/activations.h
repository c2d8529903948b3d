// Rows of activations quantized once for all products of a linear op.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernel_table.h"
#include "ops/backend.h"

namespace headrace {

// Each 32 values of a row are int8 codes and one float scale amax / 127, rounded to nearest. In some blocks of the
// row what is left over is coded again, as a second term with a scale of its own:
//   kInt8: in the row's 1/32 of blocks (at least two, where there are as many) with the largest amax, of equal ones
//   the first;
//   kInt16: in every block, which makes 16-bit codes of the pair.
// A row's codes are a function of that row alone. A row with a value that is not finite multiplies to NaN.
// Storage is kept between calls.
struct ActivationRows {
  ActivationType type = ActivationType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  QuantizedPlane first = {};     // into `storage`
  QuantizedPlane second = {};    // kInt16
  OutlierPlane outliers = {};    // kInt8
  int64_t workspace_rows = 0;    // rows a task may have at once
  uint64_t workspace_bytes = 0;  // of one thread
  uint8_t* scratch = nullptr;    // [threads][workspace_bytes], of the products
  AlignedBuffer storage;
  AlignedBuffer workspace;  // behind scratch
};

// Quantizes x [rows, cols] to `type` (kInt8 or kInt16), each row by itself; cols is a multiple of 32. Throws
// std::bad_alloc.
void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out);

// Several groups of rows, each quantized for products of its own.
class QuantizedGroups {
 public:
  // Rows [starts[g], starts[g + 1]) are group g's, none empty; rows[i] is where row i's cols values lie. Throws
  // std::bad_alloc.
  void quantize(const std::vector<int64_t>& starts, const float* const* rows, int64_t cols, ActivationType type,
                ThreadPool& pool, const KernelTable& kernels);
  const ActivationRows& group(size_t index) const { return groups_[index]; }

 private:
  std::vector<ActivationRows> groups_;
  std::vector<int64_t> tile_ends_;  // of each group, counted over all
  AlignedBuffer storage_, workspace_;
};

}  // namespace headrace
