#include "ops/top_positions.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/float_order.h"

namespace headrace {
namespace {

// NaN is the least.
uint32_t ordered_bits(float score) { return std::isnan(score) ? 0 : order_key(score); }

}  // namespace

void TopPositions::pick(std::span<const float> scores, int64_t count, int32_t* out) {
  const auto taken = static_cast<size_t>(count);
  if (taken < scores.size()) {
    // Unequal keys in one order: the score, then how far a position is from the end.
    keys_.resize(scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      keys_[i] = uint64_t{ordered_bits(scores[i])} << 32 | (0xffffffff - static_cast<uint32_t>(i));
    }
    std::nth_element(keys_.begin(), keys_.begin() + count, keys_.end(), std::greater<>());
    for (size_t i = 0; i < taken; ++i) out[i] = static_cast<int32_t>(0xffffffff - static_cast<uint32_t>(keys_[i]));
    std::sort(out, out + count);
    return;
  }
  for (size_t i = 0; i < taken; ++i) out[i] = static_cast<int32_t>(i);
}

}  // namespace headrace
