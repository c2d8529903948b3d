// Where the disk tier keeps its files. Tests put one that fails in a directory's place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace headrace::kv {

struct TierFile {
  std::string name;
  uint64_t bytes = 0;
  int64_t used_ns = 0;  // when it was last written or touched; only compared
};

// One thread at a time.
class TierFiles {
 public:
  virtual ~TierFiles() = default;
  virtual Result<std::vector<TierFile>> list() = 0;
  // The whole file or none.
  virtual Status write(const std::string& name, std::span<const std::byte> bytes) = 0;
  // kNotFound where it is gone, kResourceExhausted where it has more than max_bytes.
  virtual Result<std::vector<std::byte>> read(const std::string& name, uint64_t max_bytes) = 0;
  // For the order of list(): the file was used now.
  virtual void touch(const std::string& name) = 0;
  virtual void remove(const std::string& name) = 0;
};

// The folder is made where it is not there (0700), its parent is not. Files are renamed into place, with the mode 0600, and not
// synced: a checksum tells what a crash left. kIo with the path as place.
Result<std::unique_ptr<TierFiles>> open_tier_folder(const std::string& path);

}  // namespace headrace::kv
