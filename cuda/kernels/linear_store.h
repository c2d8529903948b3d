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

}  // namespace headrace::cuda
