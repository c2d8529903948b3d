// The families that this library knows.
#pragma once

#include <span>

namespace headrace {

struct Family;

// Every family, in the order in which they are asked.
std::span<const Family* const> all_families();

}  // namespace headrace
