// Rows of activations for weights whose columns are stored in another order, such as GPTQ's act-order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpu/activations.h"

namespace headrace {

// Quantized rows with their elements in the order of a weight's columns; weights of one op with the same order share
// them. Storage is kept between ops. Thread rule: that of the backend that owns it.
class OrderedActivations {
 public:
  // Forgets what was made for the op before.
  void begin() { used_ = 0; }
  // Rows [num_rows] of `cols` values each; element j of a quantized row is element order[j] of the row. The result is
  // valid until begin(). Throws std::bad_alloc.
  const ActivationRows& quantize(const float* const* rows, int64_t num_rows, int64_t cols,
                                 std::span<const int32_t> order, ActivationType type, ThreadPool& pool,
                                 const KernelTable& kernels);

 private:
  struct Entry {
    std::vector<const float*> sources;
    std::span<const int32_t> order;
    AlignedBuffer x;
    ActivationRows rows;
  };

  std::vector<std::unique_ptr<Entry>> entries_;
  size_t used_ = 0;
};

}  // namespace headrace
