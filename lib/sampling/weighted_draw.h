// A draw from weights by one uniform number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

namespace headrace {

// The first of `ids` whose cumulative weight exceeds uniform * their sum: weights [ids.size()] of at least 0, one of them above;
// uniform in [0, 1). Those of weight 0 are never drawn.
inline int32_t draw_by_weight(std::span<const int32_t> ids, std::span<const double> weights, double uniform) {
  const double target = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  int32_t last = ids.front();  // for a target that rounding put at the sum itself
  for (size_t i = 0; i < ids.size(); ++i) {
    if (weights[i] == 0.0) continue;
    sum += weights[i];
    last = ids[i];
    if (sum > target) break;
  }
  return last;
}

}  // namespace headrace
