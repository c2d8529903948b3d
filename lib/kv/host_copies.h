// Blocks that gave their place in the pool up, kept in the program's memory: the least recently used go.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kv/tier_record.h"
#include "kv/tier_stats.h"

namespace headrace::kv {

// One full block, or the recurrent state behind one.
struct BlockCopy {
  TierRecord record;
  std::vector<std::byte> raw;  // [record.raw_bytes]
};

// Bounded in bytes of raw. One thread at a time.
class HostCopies {
 public:
  explicit HostCopies(uint64_t max_bytes) { stats_.max_bytes = max_bytes; }

  bool enabled() const { return stats_.max_bytes > 0; }
  bool contains(const TierKey& key) const { return index_.contains(key); }
  // Null where there is none; it is the most recently used then.
  std::shared_ptr<const BlockCopy> find(const TierKey& key);
  // Keeps it unless it is larger than all may be, or there already; the least recently used make room. std::bad_alloc
  // leaves all as it was, but for what made room.
  void keep(std::shared_ptr<const BlockCopy> copy);
  void erase(const TierKey& key);
  // Those of that tag.
  void clear(const Hash128& tag);

  // bytes and copies as of now.
  KvHostStats stats() const { return stats_; }
  void count_read(size_t bytes) {
    ++stats_.read_copies;
    stats_.read_bytes += bytes;
  }

 private:
  using Order = std::list<std::shared_ptr<const BlockCopy>>;
  using Index = std::unordered_map<TierKey, Order::iterator, TierKeyHash>;
  void erase(Index::iterator entry);

  Order order_;  // the least recently used first
  Index index_;
  KvHostStats stats_;
};

}  // namespace headrace::kv
