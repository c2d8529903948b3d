// Bytes that stay where they are for as long as anybody holds them: a part of a mapped file, or a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace headrace {

// Copies share the bytes, which nobody writes. Empty by default.
class SharedBytes {
 public:
  SharedBytes() = default;
  // `owner` keeps bytes [data, data + size).
  SharedBytes(std::shared_ptr<const void> owner, const std::byte* data, uint64_t size)
      : data_(std::move(owner), data), size_(size) {}

  const std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const std::byte> span() const { return {data(), static_cast<size_t>(size_)}; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data());
  }

 private:
  std::shared_ptr<const std::byte> data_;
  uint64_t size_ = 0;
};

}  // namespace headrace
