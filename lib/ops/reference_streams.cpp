#include <algorithm>
#include <cmath>

#include "ops/reference_backend.h"
#include "ops/stream_gates.h"

namespace headrace {
namespace {

double mean_square(const float* x, int64_t size) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum / static_cast<double>(size);
}

}  // namespace

void reference_mix_streams(const MixStreamsParams& p) {
  for (int64_t row = 0; row < p.num_tokens; ++row) {
    for (int32_t o = 0; o < p.num_out; ++o) {
      const float* coefficients = p.coefficients + (row * p.num_out + o) * p.num_in;
      float* out = p.out + row * p.out_row_stride + o * p.out_stream_stride;
      for (int64_t d = 0; d < p.size; ++d) {
        double sum = p.accumulate ? static_cast<double>(out[d]) : 0.0;
        for (int32_t i = 0; i < p.num_in; ++i) {
          sum += static_cast<double>(coefficients[i]) *
                 static_cast<double>(p.x[row * p.x_row_stride + i * p.x_stream_stride + d]);
        }
        out[d] = static_cast<float>(sum);
      }
    }
  }
}

void reference_stream_gates(const StreamGatesParams& p) {
  for (int64_t row = 0; row < p.num_tokens; ++row) compute_stream_gates(p, row);
}

void reference_match_magnitude(const MatchMagnitudeParams& p) {
  for (int64_t row = 0; row < p.num_tokens; ++row) {
    float* x = p.x + row * p.size;
    const double own = std::sqrt(std::max(mean_square(x, p.size), static_cast<double>(p.floor)));
    const double factor = std::sqrt(mean_square(p.like + row * p.size, p.size)) / own;
    for (int64_t i = 0; i < p.size; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) * factor);
  }
}

void reference_cut_gates(const CutGatesParams& p) {
  for (int64_t row = 0; row < p.num_tokens; ++row) {
    float* x = p.x + row * p.size;
    double mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < p.size; ++i) mean += static_cast<double>(x[i]);
    mean /= static_cast<double>(p.size);
    for (int64_t i = 0; i < p.size; ++i) {
      squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
    }
    const double cutoff = mean + static_cast<double>(p.factor) * std::sqrt(squares / static_cast<double>(p.size));
    for (int64_t i = 0; i < p.size; ++i) {
      const double above = static_cast<double>(x[i]) - cutoff;
      x[i] = above < 0.0 ? 0.0f : static_cast<float>(above);  // NaN stays
    }
  }
}

}  // namespace headrace
