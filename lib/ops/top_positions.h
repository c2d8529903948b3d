// The choice of an indexer, shared by every backend on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

// Picks positions by score. Its memory is kept between calls; each of several threads has one of its own.
class TopPositions {
 public:
  // The `count` positions (at most scores.size()) with the largest scores, of equal ones (NaN counts as the smallest, and
  // 0 equals -0) the lower, in ascending order.
  void pick(std::span<const float> scores, int64_t count, int32_t* out);

 private:
  std::vector<uint64_t> keys_;
};

}  // namespace headrace
