// Blocks on their way from the tiers beyond the pool.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "kv/tier_record.h"

namespace headrace::kv {

// Records that are read one after the other, each given to `deliver` from the tier's thread; the first that cannot be had ends
// it. Any thread.
class BlockFetch {
 public:
  using Deliver = std::function<void(size_t index, std::span<const std::byte> raw)>;
  BlockFetch(std::vector<TierRecord> records, Deliver deliver)
      : records_(std::move(records)), deliver_(std::move(deliver)) {}

  size_t size() const { return records_.size(); }
  bool done() const;
  // Waits until it is done, at most so long.
  void wait(std::chrono::milliseconds limit) const;
  size_t num_delivered() const;
  // Afterwards deliver is not called any more. Waits for a call in progress.
  void cancel();

 private:
  friend class BlockTier;
  // Those that have not been delivered.
  std::span<const TierRecord> remaining() const;
  // False where it was cancelled, or this was the last.
  bool give(std::span<const std::byte> raw);
  void end();

  const std::vector<TierRecord> records_;
  const Deliver deliver_;
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  size_t num_delivered_ = 0;
  bool done_ = false;
};

}  // namespace headrace::kv
