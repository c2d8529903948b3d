#include "kv/block_tier.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace headrace::kv {

BlockTier::BlockTier(std::unique_ptr<TierFiles> files, BlockTierConfig config)
    : config_(std::move(config)), files_(std::move(files)), host_(config_.host_bytes) {
  if (files_) stats_.max_bytes = config_.max_bytes;
}

Result<std::unique_ptr<BlockTier>> BlockTier::open(std::unique_ptr<TierFiles> files, BlockTierConfig config) {
  if (!has_codec(config.codec)) {
    return unsupported("codec", "this build has no {}", codec_name(config.codec));
  }
  std::unique_ptr<BlockTier> tier(new BlockTier(std::move(files), std::move(config)));
  if (tier->files_) {
    HEADRACE_RETURN_IF_ERROR(tier->scan());
    tier->make_room();
  }
  if (tier->config_.threaded) {
    try {
      tier->thread_ = std::thread([self = tier.get()] { self->work(); });
    } catch (const std::system_error& e) {
      return resource_exhausted("cache tier", "no thread can be started: {}", e.what());
    }
  }
  return tier;
}

BlockTier::~BlockTier() { stop(); }

void BlockTier::set_source(Source source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

void BlockTier::wake() {
  {
    const std::lock_guard lock(mutex_);
    source_may_have_more_ = true;
  }
  wake_.notify_one();
}

void BlockTier::stop() {
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

void BlockTier::work() {
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

bool BlockTier::run_one() {
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
      std::vector<BlockCopy> copies = source();
      if (!copies.empty()) wake();
      for (BlockCopy& copy : copies) put(std::move(copy));
    }
  } catch (const std::bad_alloc&) {
    // What is lost is a copy: it will be computed again, or written when its block is evicted.
    if (fetch) fetch->end();
    const std::lock_guard lock(mutex_);
    if (!fetch) ++stats_.dropped_writes;
    if (pending) {
      if (const auto found = index_.find(pending->copy->record.key); found != index_.end()) erase(found);
    }
  }
  const std::lock_guard lock(mutex_);
  if (pending) queued_bytes_ -= pending->copy->raw.size();
  working_ = false;
  return true;
}

// ---- writing ----

bool BlockTier::contains(const TierKey& key) const {
  const std::lock_guard lock(mutex_);
  return host_.contains(key) || index_.contains(key);
}

bool BlockTier::lacks(const TierKey& key) const {
  const std::lock_guard lock(mutex_);
  return (host_.enabled() && !host_.contains(key)) || (files_ && !index_.contains(key));
}

bool BlockTier::has_room(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= host_.stats().max_bytes || may_queue(bytes)) return true;
  ++stats_.dropped_writes;
  return false;
}

// One copy always fits, however large its blocks are.
bool BlockTier::may_queue(uint64_t bytes) const {
  return files_ && (queued_bytes_ == 0 || queued_bytes_ + bytes <= config_.max_queued_bytes);
}

void BlockTier::put(BlockCopy given) {
  const auto copy = std::make_shared<const BlockCopy>(std::move(given));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    host_.keep(copy);
    if (!files_ || index_.contains(copy->record.key)) return;
    if (!may_queue(copy->raw.size())) {
      ++stats_.dropped_writes;
      return;
    }
    enqueue(copy);
  }
  wake_.notify_one();
}

void BlockTier::enqueue(std::shared_ptr<const BlockCopy> copy) {
  const TierKey key = copy->record.key;
  auto pending = std::make_shared<Pending>(Pending{std::move(copy)});
  writes_.push_back(pending);
  try {
    const auto place = order_.insert(order_.end(), key);
    try {
      index_.emplace(key, Entry{0, pending, place});
    } catch (const std::bad_alloc&) {
      order_.erase(place);
      throw;
    }
  } catch (const std::bad_alloc&) {
    writes_.pop_back();
    throw;
  }
  queued_bytes_ += pending->copy->raw.size();
}

void BlockTier::write(const std::shared_ptr<Pending>& pending) {
  const TierKey key = pending->copy->record.key;
  Status status;
  uint64_t bytes = 0;
  const bool wanted = [&] {
    const std::lock_guard lock(mutex_);
    return !pending->cancelled;
  }();
  if (wanted) {
    const auto file =
        write_tier_record(pending->copy->record, pending->copy->raw, config_.codec, config_.element_bytes);
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

void BlockTier::warn_once(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(warned_, true)) return;
  }
  log_line(config_.log, LogLevel::kWarning, "kv",
           fmt::format("{}; further failures to write are only counted", status.within("kv.disk_path").to_string()));
}

// Called with a turn of work_mutex_.
void BlockTier::make_room() {
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

void BlockTier::erase(Index::iterator entry) {
  if (!entry->second.pending) {
    stats_.bytes -= entry->second.bytes;
    --stats_.files;
  }
  order_.erase(entry->second.place);
  index_.erase(entry);
}

// The folder is the truth: what others wrote is found from here on, what they removed is not.
Status BlockTier::scan() {
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
    const TierKey& key = pending->copy->record.key;
    if (pending->cancelled || index.contains(key)) continue;
    index.emplace(key, Entry{0, pending, order.insert(order.end(), key)});
  }
  index_ = std::move(index);
  order_ = std::move(order);
  stats_.bytes = bytes;
  stats_.files = num_files;
  written_since_scan_ = 0;
  return Status();
}

void BlockTier::clear(const Hash128& tag) {
  const std::lock_guard turn(work_mutex_);
  std::vector<TierKey> victims;
  {
    const std::lock_guard lock(mutex_);
    host_.clear(tag);
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

void BlockTier::drain() {
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

KvDiskStats BlockTier::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

KvHostStats BlockTier::host_stats() const {
  const std::lock_guard lock(mutex_);
  return host_.stats();
}

}  // namespace headrace::kv
