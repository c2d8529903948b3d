// Numbers in files as they lie in memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace headrace::kv {

static_assert(std::endian::native == std::endian::little, "block contents are written as they lie in memory");

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace headrace::kv
