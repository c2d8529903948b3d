// Where the bytes of a model file come from: a path, a descriptor, memory, or the host's reader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace headrace {

// Random-access read-only bytes of a fixed size. read() may be called from several threads at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual uint64_t size() const = 0;
  // For error messages: the path, or what the host called it.
  virtual const std::string& name() const = 0;
  // Fills `destination` from `offset`; a range that leaves the source is an error and reads nothing.
  virtual Status read(uint64_t offset, std::span<std::byte> destination) = 0;
  // The whole source in memory (memory buffers, mmap), or null.
  virtual const std::byte* mapped() const { return nullptr; }
  // When the file was last written, nanoseconds since 1970 at the time it was opened; 0 where there is no file.
  virtual int64_t modified_ns() const { return 0; }
};

// Opens a regular file. With use_mmap the pages are mapped: a file truncated afterwards then raises SIGBUS, which is
// why it is never the default.
Result<std::shared_ptr<ByteSource>> open_path(const std::string& path, bool use_mmap = false);
// Reads a descriptor that the caller keeps open for the source's life; offsets are absolute in the file.
Result<std::shared_ptr<ByteSource>> open_descriptor(int descriptor, std::string name);
// Memory that lives as long as the source; `release` (may be empty) is called once when it is gone.
std::shared_ptr<ByteSource> open_memory(std::span<const std::byte> bytes, std::string name,
                                        std::function<void()> release);
// The host's reader: returns true when it filled size bytes from offset.
using ReadCallback = std::function<bool(uint64_t offset, std::byte* destination, uint64_t size)>;
std::shared_ptr<ByteSource> open_reader(uint64_t size, ReadCallback read, std::string name,
                                        std::function<void()> release);

// The whole of a (small) source as a string; larger than max_bytes is an error.
Result<std::string> read_all(ByteSource& source, uint64_t max_bytes);

}  // namespace headrace
