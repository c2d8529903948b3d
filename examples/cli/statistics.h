// Means with standard errors, percentiles and medians of measured values.
#pragma once

#include <cstdint>
#include <vector>

namespace cli {

struct Mean {
  double value = 0;
  double standard_error = 0;  // of the mean, from the sample variance
};

Mean mean(const std::vector<double>& values);
// A share of `count` trials: sqrt(f (1 - f) / (n - 1)).
Mean share(int64_t successes, int64_t count);
// Linear interpolation between order statistics; fraction in [0, 1].
double percentile(std::vector<double> values, double fraction);
inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

}  // namespace cli
