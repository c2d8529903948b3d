#include "base/memory_budget.h"

#include <algorithm>
#include <utility>

namespace headrace {

uint64_t MemoryBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

uint64_t MemoryBudget::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

Status MemoryBudget::change(uint64_t before, uint64_t after, const std::string& place) {
  const std::lock_guard lock(mutex_);
  const uint64_t others = used_ - before;
  if (after > before && limit_ != 0 && (others > limit_ || after > limit_ - others)) {
    return resource_exhausted(place, "{} bytes do not fit: {} of the {} of runtime.max_bytes are in use", after, others,
                              limit_);
  }
  used_ = others + after;
  peak_ = std::max(peak_, used_);
  return Status();
}

MemoryShare::MemoryShare(std::shared_ptr<MemoryBudget> budget, std::string place)
    : budget_(std::move(budget)), place_(std::move(place)) {}

MemoryShare::~MemoryShare() {
  if (budget_ != nullptr) (void)budget_->change(bytes_, 0, place_);
}

MemoryShare::MemoryShare(MemoryShare&& other) noexcept
    : budget_(std::move(other.budget_)), place_(std::move(other.place_)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryShare& MemoryShare::operator=(MemoryShare&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(place_, other.place_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status MemoryShare::resize(uint64_t bytes) {
  if (budget_ != nullptr) HEADRACE_RETURN_IF_ERROR(budget_->change(bytes_, bytes, place_));
  bytes_ = bytes;
  return Status();
}

}  // namespace headrace
