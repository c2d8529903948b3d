#include "schedule/cost_model.h"

#include <algorithm>
#include <cmath>

namespace headrace::schedule {
namespace {

constexpr double kKeep = 0.98;         // of the weight of earlier steps of the same kind
constexpr double kPriorWeight = 0.02;  // against one step's relative error

// Solves the symmetric system of the factors in `used` by elimination; the others are 0. False where it has no solution.
template <size_t N>
bool solve(std::array<std::array<double, N>, N> a, std::array<double, N> b, const std::array<bool, N>& used,
           std::array<double, N>& x) {
  for (size_t i = 0; i < N; ++i) {
    if (used[i]) continue;
    for (size_t j = 0; j < N; ++j) a[i][j] = a[j][i] = 0.0;
    a[i][i] = 1.0;
    b[i] = 0.0;
  }
  for (size_t i = 0; i < N; ++i) {
    if (!(a[i][i] > 1e-12)) return false;
    for (size_t row = i + 1; row < N; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (size_t j = i; j < N; ++j) a[row][j] -= factor * a[i][j];
      b[row] -= factor * b[i];
    }
  }
  for (size_t i = N; i-- > 0;) {
    x[i] = b[i];
    for (size_t j = i + 1; j < N; ++j) x[i] -= a[i][j] * x[j];
    x[i] /= a[i][i];
  }
  return true;
}

}  // namespace

void CostModel::Sums::add(const Vector& x, double keep) {
  for (size_t i = 0; i < kFactors; ++i) {
    for (size_t j = 0; j < kFactors; ++j) products[i][j] = keep * products[i][j] + x[i] * x[j];
    sum[i] = keep * sum[i] + x[i];
  }
  weight = keep * weight + 1.0;
}

void CostModel::observe(const StepWork& work, bool has_prompts, int64_t ns) {
  if (ns <= 0 || work.rows <= 0.0) return;
  const double time = static_cast<double>(ns);
  const Vector x = {prior_.step_ns / time, prior_.row_ns * work.rows / time, prior_.pair_ns * work.pairs / time};
  (has_prompts ? prompts_ : decodes_).add(x, kKeep);
  fit();
}

void CostModel::fit() {
  // The prior's scale: by how much its predictions were off on the whole.
  double predicted = 0.0;
  for (size_t i = 0; i < kFactors; ++i) predicted += prompts_.sum[i] + decodes_.sum[i];
  const double scale = (prompts_.weight + decodes_.weight) / predicted;
  if (!std::isfinite(scale) || scale <= 0.0) return;
  std::array<Vector, kFactors> products = {};
  Vector sums = {};
  for (size_t i = 0; i < kFactors; ++i) {
    for (size_t j = 0; j < kFactors; ++j) products[i][j] = prompts_.products[i][j] + decodes_.products[i][j];
    sums[i] = prompts_.sum[i] + decodes_.sum[i];
    // kPriorWeight * (a / scale - 1)^2 is added to the squares.
    products[i][i] += kPriorWeight / (scale * scale);
    sums[i] += kPriorWeight / scale;
  }
  // A factor below 0 is left out, which is the minimum for so few unless two of them trade places; then the next step decides.
  std::array<bool, kFactors> used = {true, true, true};
  Vector a = {};
  for (size_t round = 0; round < kFactors; ++round) {
    if (!solve(products, sums, used, a)) return;
    const auto least = std::min_element(a.begin(), a.end());
    if (*least >= 0.0) break;
    used[static_cast<size_t>(least - a.begin())] = false;
  }
  for (double& factor : a) factor = std::max(factor, 0.0);
  factors_ = {a[0] * prior_.step_ns, a[1] * prior_.row_ns, a[2] * prior_.pair_ns};
}

int64_t CostModel::rows_within(int64_t first_row, int64_t max_rows, double ns) const {
  // row_ns n + pair_ns (n first + n (n + 1) / 2) <= ns
  int64_t low = 0, high = std::max<int64_t>(max_rows, 0);
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (added_ns(StepWork::of(first_row, middle)) <= ns) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace headrace::schedule
