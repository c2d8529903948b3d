// Memory on cache-line boundaries, in huge pages where it is large: packed weights and the kernels' scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/shared_bytes.h"
#include "base/status.h"

namespace headrace {

// Owns uninitialised bytes aligned to 64. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // kOutOfMemory names `what`.
  static Result<AlignedBuffer> allocate(uint64_t bytes, const std::string& what);

  // At least `bytes`, contents lost when it has to grow. Throws std::bad_alloc.
  void reserve(uint64_t bytes);
  // The same for count >= 0 floats; where they are.
  float* reserve_floats(int64_t count) {
    reserve(static_cast<uint64_t>(count) * sizeof(float));
    return as<float>();
  }

  // Gives the bytes away, to stay for as long as anybody holds them.
  SharedBytes share() &&;

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  bool replace(uint64_t bytes);
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace headrace
