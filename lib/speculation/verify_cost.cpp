#include "speculation/verify_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace headrace::speculation {

size_t VerifyCost::bin(int64_t rows) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(rows, 1));
  if (n <= 8) return static_cast<size_t>(n - 1);
  const auto octave = static_cast<uint64_t>(std::bit_width(n - 1)) - 4;  // 0: 9 to 16
  const uint64_t quarter = (n - 1 - (uint64_t{8} << octave)) >> (octave + 1);
  return std::min<size_t>(8 + static_cast<size_t>(4 * octave + quarter), kBins - 1);
}

void VerifyCost::observe(int64_t rows, double ns) {
  ++num_steps_;
  if (!(ns > 0.0)) return;
  constexpr int32_t kRemembered = 8;
  Bin& at = bins_[bin(rows)];
  double per_row = ns / static_cast<double>(std::max<int64_t>(rows, 1));
  // A step that something else held up counts for little.
  if (at.measured > 1) per_row = std::min(per_row, 2.0 * at.ns_per_row);
  at.measured = std::min(at.measured + 1, kRemembered);
  at.ns_per_row += (per_row - at.ns_per_row) / at.measured;
}

double VerifyCost::predict_ns(int64_t rows, double linear_ns) const {
  const Bin& at = bins_[bin(rows)];
  constexpr double kLinearWeight = 1.0;  // in measurements
  const double measured = at.ns_per_row * static_cast<double>(rows);
  return (at.measured * measured + kLinearWeight * linear_ns) / (at.measured + kLinearWeight);
}

}  // namespace headrace::speculation
