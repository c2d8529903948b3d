#include "cpu/streams.h"

#include <algorithm>
#include <cmath>

#include "ops/stream_gates.h"

namespace headrace {
namespace {

double mean_square(const float* x, int64_t size) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum / static_cast<double>(size);
}

void add_scaled(const float* x, float factor, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) out[i] += factor * x[i];
}

}  // namespace

void run_mix_streams(const MixStreamsParams& p, ThreadPool& pool) {
  pool.run(p.num_tokens * p.num_out, [&](int64_t task, int) {
    const int64_t row = task / p.num_out, o = task % p.num_out;
    const float* coefficients = p.coefficients + task * p.num_in;
    float* out = p.out + row * p.out_row_stride + o * p.out_stream_stride;
    if (!p.accumulate) std::fill_n(out, p.size, 0.0f);
    for (int32_t i = 0; i < p.num_in; ++i) {
      add_scaled(p.x + row * p.x_row_stride + i * p.x_stream_stride, coefficients[i], p.size, out);
    }
  });
}

void run_stream_gates(const StreamGatesParams& p, ThreadPool& pool) {
  pool.run(p.num_tokens, [&](int64_t row, int) { compute_stream_gates(p, row); });
}

void run_match_magnitude(const MatchMagnitudeParams& p, ThreadPool& pool) {
  pool.run(p.num_tokens, [&](int64_t row, int) {
    float* x = p.x + row * p.size;
    const double own = std::sqrt(std::max(mean_square(x, p.size), static_cast<double>(p.floor)));
    const auto factor = static_cast<float>(std::sqrt(mean_square(p.like + row * p.size, p.size)) / own);
    for (int64_t i = 0; i < p.size; ++i) x[i] *= factor;
  });
}

void run_cut_gates(const CutGatesParams& p, ThreadPool& pool) {
  pool.run(p.num_tokens, [&](int64_t row, int) {
    float* x = p.x + row * p.size;
    double mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < p.size; ++i) mean += static_cast<double>(x[i]);
    mean /= static_cast<double>(p.size);
    for (int64_t i = 0; i < p.size; ++i) {
      squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
    }
    const auto cutoff =
        static_cast<float>(mean + static_cast<double>(p.factor) * std::sqrt(squares / static_cast<double>(p.size)));
    for (int64_t i = 0; i < p.size; ++i) {
      const float above = x[i] - cutoff;
      x[i] = above < 0.0f ? 0.0f : above;  // NaN stays
    }
  });
}

void run_scale_columns(const ScaleParams& p, ThreadPool& pool) {
  pool.run(p.num_elements / p.num_columns, [&](int64_t row, int) {
    float* x = p.x + row * p.num_columns;
    for (int64_t i = 0; i < p.num_columns; ++i) x[i] *= p.factor * p.columns[i];
  });
}

}  // namespace headrace
