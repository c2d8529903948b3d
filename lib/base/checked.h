// Arithmetic on numbers that come from files or callers: each operation says whether it fitted.
#pragma once

#include <concepts>
#include <optional>

namespace headrace {

template <std::integral T>
std::optional<T> checked_add(T a, T b) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
std::optional<T> checked_mul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// value rounded up to a multiple of `alignment` (a power of two), or nothing when that does not fit.
template <std::unsigned_integral T>
std::optional<T> checked_align(T value, T alignment) {
  auto raised = checked_add<T>(value, alignment - 1);
  if (!raised) return std::nullopt;
  return *raised & ~(alignment - 1);
}

}  // namespace headrace
