// A buffer that ops read and write: in the backend's device memory, or the program's own where it has none.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/device_memory.h"

namespace headrace {

class OpFloats {
 public:
  OpFloats() = default;
  OpFloats(const OpFloats&) = delete;
  OpFloats& operator=(const OpFloats&) = delete;
  ~OpFloats() { release(); }

  // Before the first resize; null: the program's memory.
  void place_in(std::shared_ptr<DeviceMemory> memory) { memory_ = std::move(memory); }

  // In device memory the contents are lost where it grows. Throws std::bad_alloc; nothing is left in device memory then.
  void resize(size_t size) {
    if (memory_ == nullptr) return host_.resize(size);
    if (size <= capacity_) return;
    release();
    device_ = memory_->allocate(size * sizeof(float));
    if (device_ == nullptr) throw std::bad_alloc();
    capacity_ = size;
  }
  // What the program must not touch where the memory is a device's.
  float* data() { return memory_ == nullptr ? host_.data() : reinterpret_cast<float*>(device_); }

 private:
  void release() {
    if (device_ != nullptr) memory_->free(std::exchange(device_, nullptr));
    capacity_ = 0;
  }

  std::shared_ptr<DeviceMemory> memory_;
  std::vector<float> host_;
  std::byte* device_ = nullptr;
  size_t capacity_ = 0;  // floats of device_
};

}  // namespace headrace
