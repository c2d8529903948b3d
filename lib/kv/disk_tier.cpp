#include "kv/disk_tier.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace headrace::kv {

// ---- a fetch ----

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

// ---- the tier ----

DiskTier::DiskTier(std::unique_ptr<TierFiles> files, DiskTierConfig config)
    : config_(std::move(config)), files_(std::move(files)) {
  stats_.max_bytes = config_.max_bytes;
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(std::unique_ptr<TierFiles> files, DiskTierConfig config) {
  if (!has_codec(config.codec)) {
    return unsupported("codec", "this build has no {}", codec_name(config.codec));
  }
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(files), std::move(config)));
  HEADRACE_RETURN_IF_ERROR(tier->scan());
  tier->make_room();
  if (tier->config_.threaded) {
    try {
      tier->thread_ = std::thread([self = tier.get()] { self->work(); });
    } catch (const std::system_error& e) {
      return resource_exhausted("disk tier", "no thread can be started: {}", e.what());
    }
  }
  return tier;
}

DiskTier::~DiskTier() { stop(); }

void DiskTier::set_source(Source source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

void DiskTier::wake() {
  {
    const std::lock_guard lock(mutex_);
    source_may_have_more_ = true;
  }
  wake_.notify_one();
}

void DiskTier::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  source_ = nullptr;
  for (const auto& fetch : fetches_) fetch->end();
  fetches_.clear();
  writes_.clear();
  idle_.notify_all();
}

void DiskTier::work() {
  for (;;) {
    if (run_one()) continue;
    std::unique_lock lock(mutex_);
    const auto has_work = [&] {
      return stopped_ || !fetches_.empty() || !writes_.empty() || (source_ && source_may_have_more_);
    };
    if (!has_work()) idle_.notify_all();
    wake_.wait(lock, has_work);
    if (stopped_) return;
  }
}

bool DiskTier::run_one() {
  const std::lock_guard turn(work_mutex_);
  std::shared_ptr<BlockFetch> fetch;
  std::shared_ptr<Pending> pending;
  Source source;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    if (!fetches_.empty()) {
      fetch = std::move(fetches_.front());
      fetches_.pop_front();
    } else if (!writes_.empty()) {
      pending = std::move(writes_.front());
      writes_.pop_front();
    } else if (source_ && std::exchange(source_may_have_more_, false)) {
      source = source_;
    } else {
      return false;
    }
    working_ = true;
  }
  try {
    if (fetch) {
      read_next(fetch);
    } else if (pending) {
      write(pending);
    } else {
      std::vector<Item> items = source();
      if (!items.empty()) wake();
      for (Item& item : items) put(std::move(item.record), std::move(item.raw));
    }
  } catch (const std::bad_alloc&) {
    // What is lost is a copy: it will be computed again, or written when its block is evicted.
    if (fetch) fetch->end();
    const std::lock_guard lock(mutex_);
    if (!fetch) ++stats_.dropped_writes;
    if (pending) {
      if (const auto found = index_.find(pending->record.key); found != index_.end()) erase(found);
    }
  }
  const std::lock_guard lock(mutex_);
  if (pending) queued_bytes_ -= pending->raw.size();
  working_ = false;
  return true;
}

// ---- reading ----

void DiskTier::read_next(const std::shared_ptr<BlockFetch>& fetch) {
  if (fetch->done()) return;
  const TierRecord& record = fetch->records_[fetch->num_delivered()];
  std::vector<std::byte> raw(record.raw_bytes);
  const TierFault fault = read(record, raw);
  if (fault != TierFault::kNone) {
    {
      const std::lock_guard lock(mutex_);
      count(fault);
      if (const auto found = index_.find(record.key); found != index_.end() && !found->second.pending) erase(found);
    }
    if (fault != TierFault::kMissing) files_->remove(tier_file_name(record.key));
    return fetch->end();
  }
  {
    const std::lock_guard lock(mutex_);
    ++stats_.read_files;
    stats_.read_bytes += raw.size();
  }
  if (!fetch->give(raw)) return;
  // The others have their turn: a short prefix does not wait for a long one.
  const std::lock_guard lock(mutex_);
  fetches_.push_back(fetch);
}

TierFault DiskTier::read(const TierRecord& record, std::vector<std::byte>& raw) {
  std::shared_ptr<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(record.key);
    if (found == index_.end()) return TierFault::kMissing;
    order_.splice(order_.end(), order_, found->second.place);
    pending = found->second.pending;
  }
  if (pending) {
    if (pending->raw.size() != raw.size() || pending->record.token_ids != record.token_ids ||
        pending->record.chain != record.chain) {
      return TierFault::kForeign;
    }
    raw = pending->raw;
    return TierFault::kNone;
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
  const TierFault fault = read_tier_record(*file, record, raw);
  if (fault == TierFault::kNone) files_->touch(name);
  return fault;
}

void DiskTier::count(TierFault fault) {
  switch (fault) {
    case TierFault::kNone: return;
    case TierFault::kMissing: ++stats_.missing_files; return;
    case TierFault::kUnreadable: ++stats_.unreadable_files; return;
    case TierFault::kTruncated: ++stats_.truncated_files; return;
    case TierFault::kDamaged: ++stats_.damaged_files; return;
    case TierFault::kForeign: ++stats_.foreign_files; return;
  }
}

void DiskTier::fetch(std::shared_ptr<BlockFetch> fetch) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || fetch->size() == 0) return fetch->end();
    fetches_.push_back(std::move(fetch));
  }
  wake_.notify_one();
}

// ---- writing ----

bool DiskTier::contains(const TierKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.contains(key);
}

bool DiskTier::has_room(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  // One copy always fits, however large its blocks are.
  if (queued_bytes_ == 0 || queued_bytes_ + bytes <= config_.max_queued_bytes) return true;
  ++stats_.dropped_writes;
  return false;
}

void DiskTier::put(TierRecord record, std::vector<std::byte> raw) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || index_.contains(record.key)) return;
    auto pending = std::make_shared<Pending>(Pending{std::move(record), std::move(raw)});
    writes_.push_back(pending);
    try {
      const auto place = order_.insert(order_.end(), pending->record.key);
      try {
        index_.emplace(pending->record.key, Entry{0, pending, place});
      } catch (const std::bad_alloc&) {
        order_.erase(place);
        throw;
      }
    } catch (const std::bad_alloc&) {
      writes_.pop_back();
      throw;
    }
    queued_bytes_ += pending->raw.size();
  }
  wake_.notify_one();
}

void DiskTier::write(const std::shared_ptr<Pending>& pending) {
  const TierKey key = pending->record.key;
  Status status;
  uint64_t bytes = 0;
  const bool wanted = [&] {
    const std::lock_guard lock(mutex_);
    return !pending->cancelled;
  }();
  if (wanted) {
    const auto file = write_tier_record(pending->record, pending->raw, config_.codec, config_.element_bytes);
    bytes = file.size();
    status = bytes > config_.max_bytes
                 ? resource_exhausted("disk tier", "a file of {} bytes is more than all may have", bytes)
                 : files_->write(tier_file_name(key), file);
  }
  {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    // Not listed as ours where another process's file of the same contents was found meanwhile.
    const bool listed = found != index_.end() && found->second.pending == pending;
    if (!status.ok()) {
      ++stats_.failed_writes;
      if (listed) erase(found);
    } else if (wanted && listed) {
      found->second.pending = nullptr;
      found->second.bytes = bytes;
      stats_.bytes += bytes;
      ++stats_.files;
      ++stats_.written_files;
      stats_.written_bytes += bytes;
      written_since_scan_ += bytes;
    }
  }
  if (!status.ok()) return warn_once(status);
  try {
    make_room();
  } catch (const std::bad_alloc&) {
    // The next write looks again.
  }
}

void DiskTier::warn_once(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(warned_, true)) return;
  }
  log_line(config_.log, LogLevel::kWarning, "kv",
           fmt::format("{}; further failures to write are only counted", status.within("kv.disk_path").to_string()));
}

// Called with a turn of work_mutex_.
void DiskTier::make_room() {
  const bool looks = [&] {
    const std::lock_guard lock(mutex_);
    return written_since_scan_ > config_.max_bytes / 16;
  }();
  if (looks && !scan().ok()) return;
  for (;;) {
    TierKey victim;
    {
      const std::lock_guard lock(mutex_);
      if (stats_.bytes <= config_.max_bytes) return;
      const auto oldest = std::find_if(order_.begin(), order_.end(),
                                       [&](const TierKey& key) { return !index_.find(key)->second.pending; });
      if (oldest == order_.end()) return;
      victim = *oldest;
      erase(index_.find(victim));
      ++stats_.evicted_files;
    }
    files_->remove(tier_file_name(victim));
  }
}

void DiskTier::erase(Index::iterator entry) {
  if (!entry->second.pending) {
    stats_.bytes -= entry->second.bytes;
    --stats_.files;
  }
  order_.erase(entry->second.place);
  index_.erase(entry);
}

// The folder is the truth: what others wrote is found from here on, what they removed is not.
Status DiskTier::scan() {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<TierFile> files, files_->list());
  std::ranges::sort(files, {}, &TierFile::used_ns);
  Index index;
  std::list<TierKey> order;
  uint64_t bytes = 0;
  for (const TierFile& file : files) {
    const auto key = parse_tier_file_name(file.name);
    if (!key || index.contains(*key)) continue;
    index.emplace(*key, Entry{file.bytes, nullptr, order.insert(order.end(), *key)});
    bytes += file.bytes;
  }
  const std::lock_guard lock(mutex_);
  const auto num_files = static_cast<int64_t>(index.size());
  for (const auto& pending : writes_) {
    if (pending->cancelled || index.contains(pending->record.key)) continue;
    index.emplace(pending->record.key, Entry{0, pending, order.insert(order.end(), pending->record.key)});
  }
  index_ = std::move(index);
  order_ = std::move(order);
  stats_.bytes = bytes;
  stats_.files = num_files;
  written_since_scan_ = 0;
  return Status();
}

void DiskTier::clear(const Hash128& tag) {
  const std::lock_guard turn(work_mutex_);
  std::vector<TierKey> victims;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& pending : writes_) pending->cancelled = true;
    for (auto entry = index_.begin(); entry != index_.end();) {
      const auto here = entry++;
      if (here->first.tag != tag) continue;
      if (!here->second.pending) victims.push_back(here->first);
      erase(here);
    }
  }
  for (const TierKey& key : victims) files_->remove(tier_file_name(key));
}

void DiskTier::drain() {
  wake();
  if (!config_.threaded) {
    while (run_one()) {
    }
    return;
  }
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] {
    return stopped_ || (!working_ && writes_.empty() && fetches_.empty() && !(source_ && source_may_have_more_));
  });
}

KvDiskStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace headrace::kv
