#include "ops/stream_gates.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace {
namespace {

constexpr size_t kMostEntries = size_t{kMostGatedStreams} * kMostGatedStreams;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Divides each of n runs of n values, `step` apart, by its sum and eps.
void divide_by_sums(double* values, int64_t n, int64_t run, int64_t step, double eps) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = eps;
    for (int64_t j = 0; j < n; ++j) sum += values[i * run + j * step];
    for (int64_t j = 0; j < n; ++j) values[i * run + j * step] /= sum;
  }
}

void softmax(double* values, int64_t n) {
  const double top = *std::max_element(values, values + n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += values[i] = std::exp(values[i] - top);
  for (int64_t i = 0; i < n; ++i) values[i] /= sum;
}

}  // namespace

void compute_stream_gates(const StreamGatesParams& p, int64_t row) {
  const int64_t n = p.num_streams, width = p.leave == nullptr ? n : n * (n + 2);
  const double eps = static_cast<double>(p.eps);
  const auto y = [&](int64_t part, int64_t index) {
    return static_cast<double>(p.scale[part]) * static_cast<double>(p.x[row * width + index]) +
           static_cast<double>(p.base[index]);
  };
  for (int64_t i = 0; i < n; ++i) p.enter[row * n + i] = static_cast<float>(sigmoid(y(0, i)) + eps);
  if (p.leave == nullptr) return;
  for (int64_t i = 0; i < n; ++i) p.leave[row * n + i] = static_cast<float>(2.0 * sigmoid(y(1, n + i)));

  std::array<double, kMostEntries> map;  // [in, out]
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t o = 0; o < n; ++o) map[static_cast<size_t>(i * n + o)] = y(2, 2 * n + i * n + o);
    softmax(map.data() + i * n, n);
    for (int64_t o = 0; o < n; ++o) map[static_cast<size_t>(i * n + o)] += eps;
  }
  divide_by_sums(map.data(), n, 1, n, eps);
  for (int32_t iteration = 1; iteration < p.iterations; ++iteration) {
    divide_by_sums(map.data(), n, n, 1, eps);
    divide_by_sums(map.data(), n, 1, n, eps);
  }
  for (int64_t o = 0; o < n; ++o) {
    for (int64_t i = 0; i < n; ++i)
      p.map[(row * n + o) * n + i] = static_cast<float>(map[static_cast<size_t>(i * n + o)]);
  }
}

}  // namespace headrace
