#include "output_file.h"

#include <headrace/headrace.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int reason) {
  throw std::runtime_error(path + ": cannot be written: " + std::generic_category().message(reason));
}

// Why `path` can be neither written over nor made, as errno says it; 0 where nothing speaks against it.
int why_not_writable(const fs::path& path) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (fs::is_directory(path, error) || !path.has_filename()) return EISDIR;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access((exists ? path : folder).c_str(), W_OK) != 0) return errno;
  return exists || fs::is_directory(folder, error) ? 0 : ENOTDIR;
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// The path up to "-00001-of-00003.gguf", the name of a part of a split model; empty for other names.
std::string split_prefix(const std::string& path) {
  constexpr std::string_view kTail = "-00001-of-00003.gguf";
  if (path.size() <= kTail.size() || !path.ends_with(".gguf")) return "";
  const std::string tail = path.substr(path.size() - kTail.size());
  for (size_t i = 0; i < kTail.size(); ++i) {
    const bool digit = kTail[i] >= '0' && kTail[i] <= '9';
    if (digit ? tail[i] < '0' || tail[i] > '9' : tail[i] != kTail[i]) return "";
  }
  return path.substr(0, path.size() - kTail.size());
}

// What a load of `model` may read: the file, its further parts, and the files beside safetensors.
std::vector<fs::path> files_of_model(const std::string& model) {
  std::error_code error;
  const fs::path path(model);
  std::vector<fs::path> files = {path};
  const bool is_folder = fs::is_directory(path, error);
  const std::string prefix = split_prefix(model);
  if (!is_folder && path.extension() != ".safetensors" && prefix.empty()) return files;
  const fs::path folder = is_folder ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    if (it.depth() > 0) it.disable_recursion_pending();  // additional_chat_templates is the deepest that is read
    const std::string extension = it->path().extension().string();
    const bool read = prefix.empty()
                          ? extension == ".safetensors" || extension == ".json" || extension == ".jinja"
                          : split_prefix(it->path().string()) == (folder / fs::path(prefix).filename()).string();
    if (read) files.push_back(it->path());
  }
  return files;
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), target_(path) {
  struct stat info;
  const bool exists = ::stat(path.c_str(), &info) == 0;
  std::error_code error;
  if (exists ? S_ISREG(info.st_mode) : !fs::is_symlink(path, error)) {
    if (fs::is_symlink(path, error)) target_ = fs::canonical(path, error).string();
    beside_ = target_ + ".XXXXXX";
    const int descriptor = ::mkstemp(beside_.data());
    if (descriptor < 0) {
      beside_.clear();
    } else {
      const mode_t mask = ::umask(0);
      ::umask(mask);
      ::fchmod(descriptor, exists ? info.st_mode & mode_t{07777} : mode_t{0666} & ~mask);
      ::close(descriptor);
    }
  }
  file_.open(beside_.empty() ? path : beside_, std::ios::binary);
  if (!file_) {
    const int reason = errno;
    if (!beside_.empty()) std::remove(beside_.c_str());
    fail(path_, reason);
  }
}

OutputFile::~OutputFile() {
  if (!beside_.empty()) std::remove(beside_.c_str());
}

void OutputFile::commit() {
  file_.close();
  if (!file_) throw std::runtime_error(path_ + ": writing failed");
  if (beside_.empty()) return;
  if (std::rename(beside_.c_str(), target_.c_str()) != 0) fail(path_, errno);
  beside_.clear();
}

void write_file(const std::string& path, const std::string& content) {
  OutputFile file(path);
  file.stream() << content;
  file.commit();
}

void require_output(const std::string& path, const std::string& model, const std::vector<std::string>& inputs) {
  if (const int reason = why_not_writable(path); reason != 0) fail(path, reason);
  for (const fs::path& part : files_of_model(model)) {
    if (is_same_file(path, part)) {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is a file of the model, and not written over", path);
    }
  }
  for (const std::string& input : inputs) {
    if (!input.empty() && is_same_file(path, input)) {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "cannot be read and written at once", path);
    }
  }
}

}  // namespace cli
