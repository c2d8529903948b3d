// Memory that the program itself cannot read or write: a device's.
#pragma once

#include <cstddef>

namespace headrace {

// Every call comes after what was asked of the device before it. Thread rule: any thread, at any time. A call that fails
// does nothing; the device's owner tells of it at its next chance (Backend::finish), and whatever follows is void.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Zeroed, at a multiple of 256; null where there is no room.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void free(std::byte* data) = 0;
  // Within the device's memory; the two places do not overlap.
  virtual void copy(const void* from, void* to, size_t bytes) = 0;
  virtual void clear(void* data, size_t bytes) = 0;
  // To and from the program's memory, which may be used again at once. Waits; bytes that cannot be read become zeros.
  virtual void read(const void* from, void* to, size_t bytes) = 0;
  virtual void write(const void* from, void* to, size_t bytes) = 0;
};

}  // namespace headrace
