// What the tiers beyond the pool give back.
#include <algorithm>
#include <chrono>

#include "kv/block_tier.h"

namespace headrace::kv {

int64_t BlockTier::now_ns() const {
  if (config_.clock_ns) return config_.clock_ns();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void BlockTier::read_next(const std::shared_ptr<BlockFetch>& fetch) {
  if (fetch->done()) return;
  const TierRecord& record = fetch->records_[fetch->num_delivered()];
  std::shared_ptr<const BlockCopy> copy;
  {
    const std::lock_guard lock(mutex_);
    copy = find_copy(record.key);
  }
  const int64_t start = now_ns();
  std::vector<std::byte> raw;
  const TierFault fault = copy ? check_copy(*copy, record) : read(record, raw);
  if (fault != TierFault::kNone) {
    {
      const std::lock_guard lock(mutex_);
      count(fault);
      host_.erase(record.key);
      if (const auto found = index_.find(record.key); found != index_.end() && !found->second.pending) erase(found);
    }
    if (files_ && fault != TierFault::kMissing) files_->remove(tier_file_name(record.key));
    return fetch->end();
  }
  {
    const std::lock_guard lock(mutex_);
    count_read(record.raw_bytes, copy != nullptr);
  }
  const bool more = fetch->give(copy ? copy->raw : raw);
  const int64_t took = now_ns() - start;
  const std::lock_guard lock(mutex_);
  (copy ? host_rate_ : disk_rate_).observe(record.raw_bytes, took);
  // The others have their turn: a short prefix does not wait for a long one.
  if (more) fetches_.push_back(fetch);
}

void BlockTier::count_read(uint64_t bytes, bool from_memory) {
  if (from_memory) return host_.count_read(bytes);
  ++stats_.read_files;
  stats_.read_bytes += bytes;
}

// One that waits to be written is as good as one that is kept.
std::shared_ptr<const BlockCopy> BlockTier::find_copy(const TierKey& key) {
  const auto found = index_.find(key);
  if (found != index_.end()) order_.splice(order_.end(), order_, found->second.place);
  if (auto kept = host_.find(key)) return kept;
  return found != index_.end() && found->second.pending ? found->second.pending->copy : nullptr;
}

TierFault BlockTier::check_copy(const BlockCopy& copy, const TierRecord& record) {
  const bool same = copy.raw.size() == record.raw_bytes && copy.record.token_ids == record.token_ids &&
                    copy.record.chain == record.chain;
  return same ? TierFault::kNone : TierFault::kForeign;
}

TierFault BlockTier::read(const TierRecord& record, std::vector<std::byte>& raw) {
  {
    const std::lock_guard lock(mutex_);
    if (!index_.contains(record.key)) return TierFault::kMissing;
  }
  const std::string name = tier_file_name(record.key);
  const auto file = files_->read(name, largest_tier_record(record));
  if (!file.ok()) {
    switch (file.status().code()) {
      case StatusCode::kNotFound: return TierFault::kMissing;
      case StatusCode::kResourceExhausted: return TierFault::kDamaged;
      default: return TierFault::kUnreadable;
    }
  }
  raw.resize(record.raw_bytes);
  const TierFault fault = read_tier_record(*file, record, raw);
  if (fault == TierFault::kNone) files_->touch(name);
  return fault;
}

void BlockTier::count(TierFault fault) {
  switch (fault) {
    case TierFault::kNone: return;
    case TierFault::kMissing: ++stats_.missing_files; return;
    case TierFault::kUnreadable: ++stats_.unreadable_files; return;
    case TierFault::kTruncated: ++stats_.truncated_files; return;
    case TierFault::kDamaged: ++stats_.damaged_files; return;
    case TierFault::kForeign: ++stats_.foreign_files; return;
  }
}

void BlockTier::fetch(std::shared_ptr<BlockFetch> fetch) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || fetch->size() == 0) return fetch->end();
    fetches_.push_back(std::move(fetch));
  }
  wake_.notify_one();
}

// Fetches take turns, a record each: of those before it, no more than it has itself.
double BlockTier::predict_ns(std::span<const TierRecord> records) const {
  const std::lock_guard lock(mutex_);
  const auto sum_of = [&](std::span<const TierRecord> some) {
    double ns = 0.0;
    for (const TierRecord& record : some) {
      const auto found = index_.find(record.key);
      const bool in_memory = host_.contains(record.key) || (found != index_.end() && found->second.pending);
      ns += (in_memory ? host_rate_ : disk_rate_).predict_ns(record.raw_bytes);
    }
    return ns;
  };
  const double own = sum_of(records);
  double all = own;
  for (const auto& before : fetches_) all += std::min(own, sum_of(before->remaining()));
  return all;
}

void BlockTier::forgo() {
  const std::lock_guard lock(mutex_);
  host_rate_.fade();
  disk_rate_.fade();
}

}  // namespace headrace::kv
