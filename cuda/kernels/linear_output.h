// Where a product goes, and how K is cut where its weight has few rows: at places that the weight's shape alone decides, whose
// parts are added in order. So a row's sums do not depend on the others.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

// y[t, n] = (y[t, n] +) row_scales[t] * sum + bias[n]
struct LinearDestination {
  float* y = nullptr;
  int64_t y_stride = 0;               // floats between rows of y
  const float* bias = nullptr;        // [rows] or null
  const float* row_scales = nullptr;  // [num_tokens] or null
  bool accumulate = false;
};

// Rows of the weight and columns of a step of the kernels that are cut.
inline constexpr int kLinearRows = 64, kLinearColumns = 64;

int linear_splits(int64_t rows, int64_t cols);
// Floats of workspace for the parts of so many tokens; 0 where K is not cut.
size_t linear_workspace(int64_t rows, int64_t cols, int64_t num_tokens);
// parts [splits, num_tokens, rows] -> the destination.
cudaError_t add_splits(const float* parts, int splits, int64_t num_tokens, int64_t rows, const LinearDestination& to,
                       cudaStream_t stream);

}  // namespace headrace::cuda
