#include "base/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>

namespace headrace {
namespace {

// What a name stands for: the file itself behind symbolic links, and the mode it has if it is there.
struct ReplacedFile {
  std::string path;
  std::optional<mode_t> mode;
};

// Renaming would put a file in the place of a device, a pipe, a socket or a link; none of them is what a caller of save
// wants to lose.
Result<ReplacedFile> find_replaced(const std::string& path) {
  ReplacedFile out{path, {}};
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return io_error(path, "cannot be examined: {}", errno_text(errno));
    if (::lstat(path.c_str(), &info) == 0) return io_error(path, "is a symbolic link to nothing");
    return out;
  }
  if (!S_ISREG(info.st_mode)) return io_error(path, "is not a regular file");
  out.mode = info.st_mode & mode_t{07777};
  if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    if (!real) return io_error(path, "its target cannot be found: {}", errno_text(errno));
    out.path = real.get();
  }
  return out;
}

}  // namespace

Status replace_file(const std::string& path, const std::function<Status(const WriteBytes&)>& fill, uint32_t new_mode) {
  if (path.empty() || path.find('\0') != std::string::npos) return invalid_argument("path", "is no file name");
  HEADRACE_ASSIGN_OR_RETURN(const ReplacedFile target, find_replaced(path));
  std::string beside = target.path + ".XXXXXX";
  const int descriptor = ::mkostemp(beside.data(), O_CLOEXEC);
  if (descriptor < 0) return io_error(path, "no file can be made beside it: {}", errno_text(errno));
  const auto write = [&](std::span<const std::byte> bytes) -> Status {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return io_error(path, "cannot be written: {}", errno_text(errno));
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return Status();
  };
  Status status;
  try {
    status = fill(write);
    if (status.ok() && ::fchmod(descriptor, target.mode.value_or(static_cast<mode_t>(new_mode))) != 0) {
      status = io_error(path, "its mode cannot be set: {}", errno_text(errno));
    }
    if (status.ok() && ::fsync(descriptor) != 0) status = io_error(path, "cannot be written: {}", errno_text(errno));
  } catch (...) {
    // Whatever broke off, neither the descriptor nor the half-written file stays.
    ::close(descriptor);
    ::unlink(beside.c_str());
    throw;
  }
  // The file goes before the words of the error are made, which may find no memory.
  const bool closed = ::close(descriptor) == 0;
  const bool replaced = status.ok() && closed && ::rename(beside.c_str(), target.path.c_str()) == 0;
  if (replaced) return Status();
  const std::error_code reason(errno, std::generic_category());
  ::unlink(beside.c_str());
  if (!status.ok()) return status;
  return io_error(path, "cannot be {}: {}", closed ? "replaced" : "written", reason.message());
}

}  // namespace headrace
