// One CUDA device with the stream that all work of a backend goes through, and its memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/device_memory.h"
#include "base/status.h"

namespace headrace::cuda {

class DeviceStream final : public DeviceMemory {
 public:
  // kUnsupported for no driver, an old one, no such device, or an architecture without kernels.
  static Result<std::shared_ptr<DeviceStream>> open(int number);
  ~DeviceStream() override;

  const std::string& device_name() const { return device_name_; }
  cudaStream_t stream() const { return stream_; }
  // Whoever starts work holds it, from its first call to its last.
  std::recursive_mutex& mutex() const { return mutex_; }
  // Makes the device the calling thread's.
  void select() { note(cudaSetDevice(number_), "cudaSetDevice"); }

  // The first failure is kept until take_failure.
  void note(cudaError_t error, std::string_view what);
  void note(Status failure);
  // Waits for the stream.
  Status take_failure();
  // Whether it lies in what allocate gave.
  bool owns(const void* pointer) const;

  std::byte* allocate(size_t bytes) override;
  void free(std::byte* data) override;
  void copy(const void* from, void* to, size_t bytes) override;
  void clear(void* data, size_t bytes) override;
  void read(const void* from, void* to, size_t bytes) override;
  void write(const void* from, void* to, size_t bytes) override;

 private:
  DeviceStream(int number, std::string device_name, cudaStream_t stream)
      : number_(number), device_name_(std::move(device_name)), stream_(stream) {}

  const int number_;
  const std::string device_name_;
  const cudaStream_t stream_;
  mutable std::recursive_mutex mutex_;
  std::map<uintptr_t, size_t> allocations_;
  Status failure_;
};

// Device memory that ends with its owner.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  // Null data() where there is no room.
  DeviceBytes(std::shared_ptr<DeviceStream> device, size_t size)
      : device_(std::move(device)), data_(device_->allocate(size)), size_(data_ == nullptr ? 0 : size) {}
  DeviceBytes(DeviceBytes&& other) noexcept
      : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  DeviceBytes& operator=(DeviceBytes&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBytes() {
    if (data_ != nullptr) device_->free(data_);
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<DeviceStream> device_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace headrace::cuda
