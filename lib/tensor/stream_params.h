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

// The coefficients of manifold-constrained hyper-connections (Xie et al. 2025, DeepSeek-V4) of rows with n streams, made of
// x[t, :] in three parts of n, n and n * n, or, without `leave`, of the first alone. With y[i] = scale[part] x[i] + base[i]:
//   enter[i] = sigmoid(y[i]) + eps
//   leave[i] = 2 sigmoid(y[n + i])
//   map[o, i]: A[i, o], A being the softmax over o of y[2n + i n + o], plus eps, then divided by its sums over i, plus eps,
//              and `iterations` - 1 times by its sums over o, plus eps, and by those over i, plus eps (Sinkhorn)
// They are computed in float64.
struct StreamGatesParams {
  const float* x = nullptr;      // [num_tokens, n (n + 2)] or [num_tokens, n]
  const float* base = nullptr;   // [n (n + 2)] or [n]
  const float* scale = nullptr;  // [3] or [1]
  int32_t num_streams = 0;       // n, at most kMostGatedStreams
  int32_t iterations = 0;        // at least 1
  float eps = 0.0f;
  int64_t num_tokens = 0;
  float* enter = nullptr;  // [num_tokens, n]
  float* leave = nullptr;  // [num_tokens, n] or null
  float* map = nullptr;    // [num_tokens, n, n] with `leave`
};
inline constexpr int32_t kMostGatedStreams = 16;

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
