#include "ops/top_positions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace headrace {
namespace {

// Unsigned numbers in the order of the floats.
uint32_t ordered_bits(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  constexpr uint32_t kSign = 0x80000000;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

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
