#include "kv/tier_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string_view>

namespace headrace::kv {
namespace {

constexpr std::string_view kUnfinished = "unfinished-";
constexpr int64_t kAbandonedAfterSeconds = 600;

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

class Folder : public TierFiles {
 public:
  Folder(int descriptor, std::string path) : folder_(descriptor), path_(std::move(path)) {}

  Result<std::vector<TierFile>> list() override;
  Status write(const std::string& name, std::span<const std::byte> bytes) override;
  Result<std::vector<std::byte>> read(const std::string& name, uint64_t max_bytes) override;
  void touch(const std::string& name) override {
    // The system's own idea of now goes by ticks: files used within one would have no order.
    timespec times[2] = {{0, UTIME_OMIT}, {}};
    ::clock_gettime(CLOCK_REALTIME, &times[1]);
    ::utimensat(folder_.get(), name.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  void remove(const std::string& name) override { ::unlinkat(folder_.get(), name.c_str(), 0); }

 private:
  Descriptor folder_;
  std::string path_;
  uint64_t num_written_ = 0;
};

Result<std::vector<TierFile>> Folder::list() {
  // A description of its own: the position in a directory belongs to that.
  const int copy = ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = copy < 0 ? nullptr : ::fdopendir(copy);
  if (directory == nullptr) {
    const int error = errno;
    if (copy >= 0) ::close(copy);
    return io_error(path_, "cannot be listed: {}", errno_text(error));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(directory, &::closedir);
  std::vector<TierFile> files;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    struct stat info;
    if (::fstatat(folder_.get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
    if (name.starts_with(kUnfinished)) {
      // Of a process that ended while it wrote.
      if (::time(nullptr) - info.st_mtim.tv_sec > kAbandonedAfterSeconds) remove(entry->d_name);
      continue;
    }
    files.push_back({std::string(name), static_cast<uint64_t>(info.st_size),
                     int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec});
  }
  return files;
}

Status Folder::write(const std::string& name, std::span<const std::byte> bytes) {
  const std::string beside =
      fmt::format("{}{}-{}-{}", kUnfinished, ::getpid(), reinterpret_cast<uintptr_t>(this), num_written_++);
  Status status;
  {
    const Descriptor file(::openat(folder_.get(), beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) return io_error(path_, "no file can be made: {}", errno_text(errno));
    while (!bytes.empty()) {
      const ssize_t written = ::write(file.get(), bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        status = io_error(path_, "cannot be written: {}", errno_text(errno));
        break;
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }
  if (status.ok() && ::renameat(folder_.get(), beside.c_str(), folder_.get(), name.c_str()) != 0) {
    status = io_error(path_, "cannot be written: {}", errno_text(errno));
  }
  if (!status.ok()) remove(beside);
  return status;
}

Result<std::vector<std::byte>> Folder::read(const std::string& name, uint64_t max_bytes) {
  // Nothing that is no file is waited for.
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT) return not_found(name, "is gone");
    return io_error(name, "cannot be opened: {}", errno_text(errno));
  }
  struct stat info;
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return io_error(name, "is no regular file");
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return resource_exhausted(name, "has {} bytes, more than {}", info.st_size, max_bytes);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(name, "cannot be read: {}", errno_text(errno));
    if (got == 0) break;  // it was cut meanwhile
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace

Result<std::unique_ptr<TierFiles>> open_tier_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return io_error(path, "the folder cannot be made: {}", errno_text(errno));
  }
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return io_error(path, "the folder cannot be opened: {}", errno_text(errno));
  auto folder = std::make_unique<Folder>(descriptor, path);
  if (::faccessat(descriptor, ".", R_OK | W_OK | X_OK, 0) != 0) {
    return io_error(path, "the folder cannot be written: {}", errno_text(errno));
  }
  return std::unique_ptr<TierFiles>(std::move(folder));
}

}  // namespace headrace::kv
