#include "kv/block_fetch.h"

namespace headrace::kv {

bool BlockFetch::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void BlockFetch::wait(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, limit, [&] { return done_; });
}

size_t BlockFetch::num_delivered() const {
  const std::lock_guard lock(mutex_);
  return num_delivered_;
}

void BlockFetch::cancel() { end(); }

std::span<const TierRecord> BlockFetch::remaining() const {
  const std::lock_guard lock(mutex_);
  return done_ ? std::span<const TierRecord>() : std::span(records_).subspan(num_delivered_);
}

bool BlockFetch::give(std::span<const std::byte> raw) {
  const std::lock_guard lock(mutex_);
  if (done_) return false;
  deliver_(num_delivered_, raw);
  if (++num_delivered_ < records_.size()) return true;
  done_ = true;
  ended_.notify_all();
  return false;
}

void BlockFetch::end() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  ended_.notify_all();
}

}  // namespace headrace::kv
