// The end of a product's sum, in a kernel.
#pragma once

#include "device.h"
#include "kernels/linear_output.h"

namespace headrace::cuda {

HEADRACE_DEVICE void store_product(const LinearDestination& to, int64_t token, int64_t row, float sum) {
  if (to.row_scales != nullptr) sum *= to.row_scales[token];
  if (to.bias != nullptr) sum += to.bias[row];
  float* const y = to.y + token * to.y_stride + row;
  *y = to.accumulate ? *y + sum : sum;
}

// The sum over a block's part of K, which blockIdx.y counts: the product where that is all of K, else one of the parts
// that add_splits adds.
HEADRACE_DEVICE void store_part(const LinearDestination& to, float* parts, int64_t num_tokens, int64_t rows,
                                int64_t token, int64_t row, float sum) {
  if (gridDim.y == 1) {
    store_product(to, token, row, sum);
  } else {
    parts[(static_cast<int64_t>(blockIdx.y) * num_tokens + token) * rows + row] = sum;
  }
}

}  // namespace headrace::cuda
