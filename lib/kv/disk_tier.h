// Blocks beyond the pool: a bounded set of files, written and read by a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "kv/block_codec.h"
#include "kv/disk_stats.h"
#include "kv/tier_files.h"
#include "kv/tier_record.h"

namespace headrace::kv {

struct DiskTierConfig {
  uint64_t max_bytes = uint64_t{4} << 30;          // of all files in the folder, whoever wrote them
  uint64_t max_queued_bytes = uint64_t{64} << 20;  // copies that wait to be written; more are dropped
  BlockCodec codec = BlockCodec::kNone;
  size_t element_bytes = 1;  // of cached values, for the codec
  bool threaded = true;      // false: run_one() is called by the owner, in tests
  LogSink log;
};

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
  friend class DiskTier;
  // False where it was cancelled.
  bool give(std::span<const std::byte> raw);
  void end();

  const std::vector<TierRecord> records_;
  const Deliver deliver_;
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  size_t num_delivered_ = 0;
  bool done_ = false;
};

// The files of a folder are found by name, the least recently used go where there are too many bytes, and a file that is not
// what its name says is removed: whatever happens to the folder costs computing, never a wrong value. Several tiers, of
// several processes too, may share one: each looks at what the others did after it wrote a sixteenth of max_bytes.
// Thread rule: any thread.
class DiskTier {
 public:
  struct Item {
    TierRecord record;
    std::vector<std::byte> raw;
  };
  // What else there is to write; empty: nothing now. Called from the tier's thread when nothing waits, without a lock.
  using Source = std::function<std::vector<Item>()>;

  // The index comes from the names in the folder.
  static Result<std::unique_ptr<DiskTier>> open(std::unique_ptr<TierFiles> files, DiskTierConfig config);
  ~DiskTier();

  // Before anything else; there is one owner.
  void set_source(Source source);
  // There may be something to write again.
  void wake();
  // The thread ends after the file that it is at, and what waits is forgotten; fetches end. Nothing is called afterwards.
  void stop();

  bool contains(const TierKey& key) const;
  // Whether a copy of so many bytes could wait; counts one that cannot.
  bool has_room(uint64_t bytes);
  // Writes it some time; it can be fetched at once.
  void put(TierRecord record, std::vector<std::byte> raw);
  void fetch(std::shared_ptr<BlockFetch> fetch);
  // Removes the files of that tag, and what waits to become one.
  void clear(const Hash128& tag);
  // Waits until all that was put and all that the source has is written.
  void drain();
  KvDiskStats stats() const;

  // The next piece of work; false when there is none. Of the owner where the tier has no thread.
  bool run_one();
  bool threaded() const { return config_.threaded; }

 private:
  struct Pending {
    TierRecord record;
    std::vector<std::byte> raw;
    bool cancelled = false;
  };
  struct Entry {
    uint64_t bytes = 0;                // on disk
    std::shared_ptr<Pending> pending;  // not on disk yet
    std::list<TierKey>::iterator place;
  };
  using Index = std::unordered_map<TierKey, Entry, TierKeyHash>;

  DiskTier(std::unique_ptr<TierFiles> files, DiskTierConfig config);
  Status scan();
  void work();
  void read_next(const std::shared_ptr<BlockFetch>& fetch);
  TierFault read(const TierRecord& record, std::vector<std::byte>& raw);
  void write(const std::shared_ptr<Pending>& pending);
  void make_room();
  void erase(Index::iterator entry);  // mutex_ held
  void count(TierFault fault);        // mutex_ held
  void warn_once(const Status& status);

  const DiskTierConfig config_;
  const std::unique_ptr<TierFiles> files_;  // of whoever runs work
  std::mutex work_mutex_;                   // one piece of work at a time, and files_

  mutable std::mutex mutex_;  // guards what follows; never held while files are touched
  std::condition_variable wake_;
  std::condition_variable idle_;
  Index index_;
  std::list<TierKey> order_;  // the least recently used first
  std::deque<std::shared_ptr<Pending>> writes_;
  std::deque<std::shared_ptr<BlockFetch>> fetches_;
  uint64_t queued_bytes_ = 0;
  uint64_t written_since_scan_ = 0;
  bool source_may_have_more_ = false;
  bool working_ = false;
  bool stopped_ = false;
  bool warned_ = false;
  KvDiskStats stats_;
  Source source_;
  std::thread thread_;
};

}  // namespace headrace::kv
