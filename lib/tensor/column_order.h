// The order of a weight's columns where it is stored in another one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace headrace {

// Which columns the elements of a weight's stored rows belong to: element j to column order[j], a permutation. Null: to
// column j.
using ColumnOrder = std::shared_ptr<const std::vector<int32_t>>;

}  // namespace headrace
