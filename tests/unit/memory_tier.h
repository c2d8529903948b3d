// A disk tier's files in memory, which outlive tiers as a folder outlives processes, and fail when they are told to.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_tier.h"

namespace headrace::kv {

struct MemoryFolder {
  struct File {
    std::vector<std::byte> bytes;
    int64_t used = 0;
  };
  enum class ReadFault { kNone, kError, kShort, kFlip, kOther };

  std::mutex mutex;
  std::map<std::string, File> files;
  int64_t clock = 0;
  int fail_writes = 0;  // so many, from now on
  uint64_t capacity = ~uint64_t{0};
  ReadFault read_fault = ReadFault::kNone;
  int fail_reads = 0;  // so many, in that way
  uint64_t flip = 0;   // which bit, of the file's

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [name, file] : files) sum += file.bytes.size();
    return sum;
  }
};

class MemoryTierFiles : public TierFiles {
 public:
  explicit MemoryTierFiles(std::shared_ptr<MemoryFolder> folder) : folder_(std::move(folder)) {}

  Result<std::vector<TierFile>> list() override {
    const std::lock_guard lock(folder_->mutex);
    std::vector<TierFile> out;
    for (const auto& [name, file] : folder_->files) out.push_back({name, file.bytes.size(), file.used});
    return out;
  }
  Status write(const std::string& name, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(folder_->mutex);
    if (folder_->fail_writes > 0) {
      --folder_->fail_writes;
      return io_error("memory", "told to fail");
    }
    if (folder_->bytes() + bytes.size() > folder_->capacity) return io_error("memory", "no space is left");
    folder_->files[name] = {{bytes.begin(), bytes.end()}, ++folder_->clock};
    return Status();
  }
  Result<std::vector<std::byte>> read(const std::string& name, uint64_t max_bytes) override {
    const std::lock_guard lock(folder_->mutex);
    const auto found = folder_->files.find(name);
    if (found == folder_->files.end()) return not_found(name, "is gone");
    std::vector<std::byte> bytes = found->second.bytes;
    if (bytes.size() > max_bytes) return resource_exhausted(name, "is too long");
    if (folder_->fail_reads == 0 || folder_->read_fault == MemoryFolder::ReadFault::kNone) return bytes;
    --folder_->fail_reads;
    switch (folder_->read_fault) {
      case MemoryFolder::ReadFault::kError: return io_error(name, "told to fail");
      case MemoryFolder::ReadFault::kShort: bytes.resize(folder_->flip % bytes.size()); break;
      case MemoryFolder::ReadFault::kFlip:
        bytes[folder_->flip / 8 % bytes.size()] ^= std::byte{1} << static_cast<int>(folder_->flip % 8);
        break;
      default: {
        // Another block's whole file under this one's name.
        for (const auto& [other, file] : folder_->files) {
          if (other != name) bytes = file.bytes;
        }
      }
    }
    return bytes;
  }
  void touch(const std::string& name) override {
    const std::lock_guard lock(folder_->mutex);
    if (const auto found = folder_->files.find(name); found != folder_->files.end()) {
      found->second.used = ++folder_->clock;
    }
  }
  void remove(const std::string& name) override {
    const std::lock_guard lock(folder_->mutex);
    folder_->files.erase(name);
  }

 private:
  std::shared_ptr<MemoryFolder> folder_;
};

// Null where it cannot be opened.
inline std::unique_ptr<BlockTier> open_memory_tier(const std::shared_ptr<MemoryFolder>& folder,
                                                   BlockTierConfig config) {
  auto tier = BlockTier::open(std::make_unique<MemoryTierFiles>(folder), std::move(config));
  return tier.ok() ? tier.take() : nullptr;
}

}  // namespace headrace::kv
