// The front of an order without sorting: the first k elements, or the shortest front whose mass reaches a
// target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float_order.h"

namespace headrace {

// Elements with greater keys, and of those with this key the first `ties` in index order.
struct Cut {
  uint32_t key = 0;
  size_t ties = 0;

  // Asked for every index in ascending order.
  bool keeps(uint32_t element_key) {
    if (element_key != key) return element_key > key;
    if (ties == 0) return false;
    --ties;
    return true;
  }
};

// The shortest front of the order (greater keys first, then lower indices) whose summed mass(index) reaches
// `target`
// (> 0); everything when rounding keeps the sum below it. Three passes over the elements, a digit of the key
// each; sums run in index order, so that the result is the same everywhere.
template <class Number, class Key, class Mass>
Cut cut_at_mass(size_t size, const Key& key, const Mass& mass, Number target) {
  constexpr std::array<int, 3> kShifts = {21, 10, 0};
  constexpr std::array<uint32_t, 3> kDigits = {2048, 2048, 1024};
  std::array<Number, 2048> sums;
  std::array<bool, 2048> seen;
  uint32_t prefix = 0;
  uint32_t prefix_mask = 0;
  Number above = 0;
  for (size_t level = 0; level < kShifts.size(); ++level) {
    sums.fill(0);
    seen.fill(false);
    for (size_t i = 0; i < size; ++i) {
      const uint32_t k = key(i);
      if ((k & prefix_mask) != prefix) continue;
      const uint32_t digit = k >> kShifts[level] & (kDigits[level] - 1);
      sums[digit] += mass(i);
      seen[digit] = true;
    }
    uint32_t chosen = 0;
    Number reached = above;
    for (uint32_t digit = kDigits[level]; digit-- > 0;) {
      if (!seen[digit]) continue;
      chosen = digit;
      above = reached;
      reached += sums[digit];
      if (reached >= target) break;
    }
    prefix |= chosen << kShifts[level];
    prefix_mask |= (kDigits[level] - 1) << kShifts[level];
  }
  Cut cut{prefix, 0};
  for (size_t i = 0; i < size && above < target; ++i) {
    if (key(i) != prefix) continue;
    above += mass(i);
    ++cut.ties;
  }
  return cut;
}

// The first `count` of the order (0 < count <= size).
template <class Key>
Cut cut_at_count(size_t size, const Key& key, size_t count) {
  return cut_at_mass<size_t>(
      size, key, [](size_t) { return size_t{1}; }, count);
}

}  // namespace headrace
