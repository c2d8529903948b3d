// Parameters of the ops of models with several residual streams, or with gates that are mostly zero. Conventions as in
// op_params.h; strides are in floats. Row t of a stream s starts at t * row_stride + s * stream_stride.
#pragma once

#include <cstdint>

namespace headrace {

// out[t, o, :] = sum over i, in order, of coefficients[t, o, i] x[t, i, :]; += with accumulate.
struct MixStreamsParams {
  const float* x = nullptr;  // num_in streams of rows of `size`
  int64_t x_row_stride = 0, x_stream_stride = 0;
  int32_t num_in = 0;
  const float* coefficients = nullptr;  // [num_tokens, num_out, num_in]
  float* out = nullptr;                 // num_out streams, not of x
  int64_t out_row_stride = 0, out_stream_stride = 0;
  int32_t num_out = 0;
  int64_t num_tokens = 0;
  int64_t size = 0;
  bool accumulate = false;
};

// x[t, :] *= rms(like[t, :]) / sqrt(max(mean(x[t, :]^2), floor)).
struct MatchMagnitudeParams {
  float* x = nullptr;           // [num_tokens, size]
  const float* like = nullptr;  // likewise
  int64_t num_tokens = 0;
  int64_t size = 0;
  float floor = 0.0f;
};

// x[t, :] = max(0, x[t, :] - (mean + factor * deviation)), of the row, the deviation being sqrt(mean((x - mean)^2)).
struct CutGatesParams {
  float* x = nullptr;  // [num_tokens, size]
  int64_t num_tokens = 0;
  int64_t size = 0;
  float factor = 0.0f;
};

}  // namespace headrace
