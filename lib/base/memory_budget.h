// Bytes that several objects may hold together.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace headrace {

// Books alone: nothing is allocated. Thread rule: any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}  // 0: none

  uint64_t limit() const { return limit_; }
  uint64_t used() const;
  uint64_t peak() const;  // the most that was used at once

 private:
  friend class MemoryShare;
  // Grows one share from `before` bytes to `after`.
  Status change(uint64_t before, uint64_t after, const std::string& place);

  const uint64_t limit_;
  mutable std::mutex mutex_;
  uint64_t used_ = 0, peak_ = 0;
};

// What one object holds of a budget; given back with it. Thread rule: the owner locks.
class MemoryShare {
 public:
  // budget null: none, and every size is granted. place: of what is refused.
  explicit MemoryShare(std::shared_ptr<MemoryBudget> budget = nullptr, std::string place = {});
  ~MemoryShare();
  MemoryShare(MemoryShare&& other) noexcept;
  MemoryShare& operator=(MemoryShare&& other) noexcept;

  uint64_t bytes() const { return bytes_; }
  // kResourceExhausted with the counts, and nothing changed, where the budget has less left; less is always granted.
  Status resize(uint64_t bytes);

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::string place_;
  uint64_t bytes_ = 0;
};

}  // namespace headrace
