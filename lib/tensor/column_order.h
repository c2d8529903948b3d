// The order of a weight's columns where it is stored in another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace headrace {

// Which columns the elements of a weight's stored rows belong to: element j to column order[j], a permutation. Null: to
// column j.
using ColumnOrder = std::shared_ptr<const std::vector<int32_t>>;

// out[order[j]] = stored[j]; out is another row than stored.
inline void put_in_order(const std::vector<int32_t>& order, const float* stored, float* out) {
  for (size_t j = 0; j < order.size(); ++j) out[order[j]] = stored[j];
}

}  // namespace headrace
