// Blocks beyond the pool: copies in the program's memory, and a bounded set of files, written and read by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "kv/block_codec.h"
#include "kv/block_fetch.h"
#include "kv/host_copies.h"
#include "kv/read_rate.h"
#include "kv/tier_files.h"
#include "kv/tier_record.h"
#include "kv/tier_stats.h"

namespace headrace::kv {

struct BlockTierConfig {
  uint64_t host_bytes = 0;                         // of copies kept in memory; 0: none are
  uint64_t max_bytes = uint64_t{4} << 30;          // of all files in the folder, whoever wrote them
  uint64_t max_queued_bytes = uint64_t{64} << 20;  // copies that wait to be written; more are dropped
  BlockCodec codec = BlockCodec::kNone;
  size_t element_bytes = 1;           // of cached values, for the codec
  bool threaded = true;               // false: run_one() is called by the owner, in tests
  std::function<int64_t()> clock_ns;  // what reads are timed by, from the tier's thread; empty: the steady clock
  LogSink log;
};

// What is put here is kept in memory, within host_bytes, and written to a file, where there is a folder.
//
// The files of a folder are found by name, the least recently used go where there are too many bytes, and a file that is not
// what its name says is removed: whatever happens to the folder costs computing, never a wrong value. Several tiers, of
// several processes too, may share one: each looks at what the others did after it wrote a sixteenth of max_bytes.
// Thread rule: any thread.
class BlockTier {
 public:
  // What else there is to write; empty: nothing now. Called from the tier's thread when nothing waits, without a lock.
  using Source = std::function<std::vector<BlockCopy>()>;

  // The index comes from the names in the folder. files may be null: then there are copies in memory only.
  static Result<std::unique_ptr<BlockTier>> open(std::unique_ptr<TierFiles> files, BlockTierConfig config);
  ~BlockTier();

  // Before anything else; there is one owner.
  void set_source(Source source);
  // There may be something to write again.
  void wake();
  // The thread ends after the file that it is at, and what waits is forgotten; fetches end. Nothing is called afterwards.
  void stop();

  // In memory or on disk.
  bool contains(const TierKey& key) const;
  // Whether put() would do something with it.
  bool lacks(const TierKey& key) const;
  // Whether a copy of so many bytes could be kept, or wait to be written; counts one that cannot.
  bool has_room(uint64_t bytes);
  // Keeps it and writes it some time; it can be fetched at once.
  void put(BlockCopy copy);
  void fetch(std::shared_ptr<BlockFetch> fetch);
  // How long a fetch of these would take, with those before it, by the reads so far.
  double predict_ns(std::span<const TierRecord> records) const;
  // It was not worth that long.
  void forgo();
  // Removes the copies and files of that tag, and what waits to become one.
  void clear(const Hash128& tag);
  // Waits until all that was put and all that the source has is written.
  void drain();
  KvDiskStats stats() const;
  KvHostStats host_stats() const;

  // The next piece of work; false when there is none. Of the owner where the tier has no thread.
  bool run_one();
  bool threaded() const { return config_.threaded; }

 private:
  struct Pending {
    std::shared_ptr<const BlockCopy> copy;
    bool cancelled = false;
  };
  struct Entry {
    uint64_t bytes = 0;                // on disk
    std::shared_ptr<Pending> pending;  // not on disk yet
    std::list<TierKey>::iterator place;
  };
  using Index = std::unordered_map<TierKey, Entry, TierKeyHash>;

  BlockTier(std::unique_ptr<TierFiles> files, BlockTierConfig config);
  Status scan();
  void work();
  void read_next(const std::shared_ptr<BlockFetch>& fetch);
  static TierFault check_copy(const BlockCopy& copy, const TierRecord& record);
  TierFault read(const TierRecord& record, std::vector<std::byte>& raw);  // the file
  void write(const std::shared_ptr<Pending>& pending);
  void make_room();
  void erase(Index::iterator entry);                               // mutex_ held
  void count(TierFault fault);                                     // mutex_ held
  void count_read(uint64_t bytes, bool from_memory);               // mutex_ held
  std::shared_ptr<const BlockCopy> find_copy(const TierKey& key);  // mutex_ held
  bool may_queue(uint64_t bytes) const;                            // mutex_ held
  void enqueue(std::shared_ptr<const BlockCopy> copy);             // mutex_ held
  void warn_once(const Status& status);
  int64_t now_ns() const;

  const BlockTierConfig config_;
  const std::unique_ptr<TierFiles> files_;  // of whoever runs work; null: there are none
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
  HostCopies host_;
  ReadRate host_rate_, disk_rate_;
  Source source_;
  std::thread thread_;
};

}  // namespace headrace::kv
