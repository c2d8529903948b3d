#include "base/byte_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

Status check_range(const ByteSource& source, uint64_t offset, uint64_t size) {
  if (offset > source.size() || size > source.size() - offset) {
    return malformed(source.name(), "bytes {}..{} lie outside the {} bytes there are", offset, offset + size,
                     source.size());
  }
  return Status();
}

struct FileFacts {
  uint64_t size = 0;
  int64_t modified_ns = 0;
};

Result<FileFacts> examine_regular_file(int descriptor, const std::string& name) {
  struct stat info;
  if (fstat(descriptor, &info) != 0) return io_error(name, "cannot be examined: {}", errno_text(errno));
  if (!S_ISREG(info.st_mode)) return io_error(name, "is not a regular file");
  return FileFacts{static_cast<uint64_t>(info.st_size),
                   int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

class DescriptorSource final : public ByteSource {
 public:
  DescriptorSource(int descriptor, bool owned, const FileFacts& facts, std::string name)
      : descriptor_(descriptor),
        owned_(owned),
        size_(facts.size),
        modified_ns_(facts.modified_ns),
        name_(std::move(name)) {}
  ~DescriptorSource() override {
    if (map_) munmap(map_, size_);
    if (owned_) close(descriptor_);
  }

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const std::byte* mapped() const override { return static_cast<const std::byte*>(map_); }
  int64_t modified_ns() const override { return modified_ns_; }

  Status read(uint64_t offset, std::span<std::byte> destination) override {
    HEADRACE_RETURN_IF_ERROR(check_range(*this, offset, destination.size()));
    size_t done = 0;
    while (done < destination.size()) {
      const ssize_t got =
          pread(descriptor_, destination.data() + done, destination.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return io_error(name_, "read failed: {}", errno_text(errno));
      if (got == 0)
        return io_error(name_, "the file ends at byte {}: it was truncated while being read", offset + done);
      done += static_cast<size_t>(got);
    }
    return Status();
  }

  Status map() {
    if (size_ == 0) return Status();
    void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
    if (address == MAP_FAILED) return io_error(name_, "mmap failed: {}", errno_text(errno));
    map_ = address;
    return Status();
  }

 private:
  int descriptor_;
  bool owned_;
  uint64_t size_;
  int64_t modified_ns_;
  std::string name_;
  void* map_ = nullptr;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string name, std::function<void()> release)
      : bytes_(bytes), name_(std::move(name)), release_(std::move(release)) {}
  ~MemorySource() override {
    if (release_) release_();
  }

  uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  const std::byte* mapped() const override { return bytes_.data(); }

  Status read(uint64_t offset, std::span<std::byte> destination) override {
    HEADRACE_RETURN_IF_ERROR(check_range(*this, offset, destination.size()));
    if (!destination.empty()) std::memcpy(destination.data(), bytes_.data() + offset, destination.size());
    return Status();
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  std::function<void()> release_;
};

class ReaderSource final : public ByteSource {
 public:
  ReaderSource(uint64_t size, ReadCallback read, std::string name, std::function<void()> release)
      : size_(size), read_(std::move(read)), name_(std::move(name)), release_(std::move(release)) {}
  ~ReaderSource() override {
    if (release_) release_();
  }

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }

  Status read(uint64_t offset, std::span<std::byte> destination) override {
    HEADRACE_RETURN_IF_ERROR(check_range(*this, offset, destination.size()));
    if (destination.empty() || read_(offset, destination.data(), destination.size())) return Status();
    return io_error(name_, "the reader could not give {} bytes at {}", destination.size(), offset);
  }

 private:
  uint64_t size_;
  ReadCallback read_;
  std::string name_;
  std::function<void()> release_;
};

}  // namespace

Result<std::shared_ptr<ByteSource>> open_path(const std::string& path, bool use_mmap) {
  // A pipe without a writer must not hold the caller up: it is refused below.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
    return Status(code, fmt::format("cannot be opened: {}", errno_text(errno)), path);
  }
  auto facts = examine_regular_file(descriptor, path);
  if (!facts.ok()) {
    close(descriptor);
    return facts.status();
  }
  auto source = std::make_shared<DescriptorSource>(descriptor, true, *facts, path);
  if (use_mmap) HEADRACE_RETURN_IF_ERROR(source->map());
  return std::shared_ptr<ByteSource>(std::move(source));
}

Result<std::shared_ptr<ByteSource>> open_descriptor(int descriptor, std::string name) {
  HEADRACE_ASSIGN_OR_RETURN(const FileFacts facts, examine_regular_file(descriptor, name));
  return std::shared_ptr<ByteSource>(std::make_shared<DescriptorSource>(descriptor, false, facts, std::move(name)));
}

std::shared_ptr<ByteSource> open_memory(std::span<const std::byte> bytes, std::string name,
                                        std::function<void()> release) {
  return std::make_shared<MemorySource>(bytes, std::move(name), std::move(release));
}

std::shared_ptr<ByteSource> open_reader(uint64_t size, ReadCallback read, std::string name,
                                        std::function<void()> release) {
  return std::make_shared<ReaderSource>(size, std::move(read), std::move(name), std::move(release));
}

Result<std::string> read_all(ByteSource& source, uint64_t max_bytes) {
  if (source.size() > max_bytes) {
    return malformed(source.name(), "{} bytes are more than the {} allowed", source.size(), max_bytes);
  }
  std::string text(source.size(), '\0');
  HEADRACE_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace headrace
