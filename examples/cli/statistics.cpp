#include "statistics.h"

#include <algorithm>
#include <cmath>

namespace cli {

Mean mean(const std::vector<double>& values) {
  if (values.empty()) return {};
  const double count = static_cast<double>(values.size());
  double sum = 0;
  for (double value : values) sum += value;
  Mean result{sum / count, 0};
  double squares = 0;
  for (double value : values) squares += (value - result.value) * (value - result.value);
  if (values.size() > 1) result.standard_error = std::sqrt(squares / (count - 1) / count);
  return result;
}

Mean share(int64_t successes, int64_t count) {
  if (count == 0) return {};
  const double f = static_cast<double>(successes) / static_cast<double>(count);
  return {f, count > 1 ? std::sqrt(f * (1 - f) / static_cast<double>(count - 1)) : 0};
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace cli
