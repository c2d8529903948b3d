// What a KvCache is made of, for the files that implement it.
#pragma once

#include <bit>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_tier.h"
#include "kv/kv_cache.h"
#include "kv/prefix_index.h"
#include "kv/state_pool.h"

namespace headrace {
namespace kv {

// The hashes of blocks that were evicted lately, about as many as the pool holds: only to say why a prefix was not found.
class EvictedHashes {
 public:
  explicit EvictedHashes(size_t num_blocks = 1) : hashes_(std::bit_ceil(num_blocks)) {}
  void add(const Hash128& hash) { hashes_[slot(hash)] = hash; }
  bool contains(const Hash128& hash) const { return hashes_[slot(hash)] == hash; }

 private:
  size_t slot(const Hash128& hash) const { return static_cast<size_t>(hash.low) & (hashes_.size() - 1); }
  std::vector<Hash128> hashes_;
};

}  // namespace kv

struct KvCache::Impl {
  explicit Impl(KvCacheConfig given)
      : config(std::move(given)), block_size(config.layers[0].block_size), index(0, block_size, config.hash_mask) {}
  // The tier's thread reads all the rest.
  ~Impl() {
    if (tier) tier->blocks->stop();
  }

  int64_t blocks_for(int64_t num_tokens) const {
    return num_tokens / block_size + (num_tokens % block_size != 0 ? 1 : 0);
  }

  // A block of one's own; the caller knows that one is free. `secret`: its bytes are wiped when nobody holds it any more.
  int32_t take_block(bool secret) {
    const int32_t block = pool.next_free();
    if (index.contains(block)) {
      if (tier) {
        stage(kv::TierKind::kBlock, block);
        stage(kv::TierKind::kState, block);
      }
      gone.add(index.hash(block));
      index.erase(block);
      states.detach(block);
      ++evictions;
    }
    secrets[static_cast<size_t>(block)] = secret;
    return pool.take();
  }

  void drop_block(int32_t block) {
    const bool keep = index.contains(block);
    pool.drop(block, keep);
    if (pool.references(block) > 0) return;
    if (keep) {
      if (tier) list_unwritten(block);
      return;
    }
    if (secrets[static_cast<size_t>(block)]) wipe(block);
    states.detach(block);
  }

  // What a secret sequence left in a block that nobody holds.
  void wipe(int32_t block) {
    pool.clear_block(block);
    if (const int32_t slot = states.snapshot(block); slot >= 0) states.clear(slot);
    secrets[static_cast<size_t>(block)] = false;
  }

  void give_state(KvSequence& sequence) {
    if (sequence.state_slot_ < 0) return;
    if (sequence.secret_) states.clear(sequence.state_slot_);
    states.give(std::exchange(sequence.state_slot_, -1));
  }

  // Gives back the blocks from position `keep` on, last one first: it is the first to be evicted.
  void drop_from(std::vector<int32_t>& block_ids, int64_t keep) {
    while (static_cast<int64_t>(block_ids.size()) > keep) {
      drop_block(block_ids.back());
      block_ids.pop_back();
    }
  }

  bool has_state() const { return config.state_floats > 0; }

  // Snapshots behind position `end` that are not published.
  void drop_pending(KvSequence& sequence, int64_t end = 0) {
    std::erase_if(sequence.pending_, [&](const std::pair<int64_t, int32_t>& snapshot) {
      if (snapshot.first <= end) return false;
      if (sequence.secret_) states.clear(snapshot.second);
      states.give(snapshot.second);
      return true;
    });
  }

  // How many of the leading blocks end in a snapshot at the last of them.
  int64_t snapshot_before(const std::vector<int32_t>& block_ids, int64_t num_blocks) const {
    while (num_blocks > 0 && states.snapshot(block_ids[static_cast<size_t>(num_blocks - 1)]) < 0) --num_blocks;
    return num_blocks;
  }

  // The sequence's state becomes that of the last snapshot at or before num_tokens; its position is returned.
  int64_t restore_state(int32_t slot, const std::vector<int32_t>& block_ids, int64_t num_tokens) {
    const int64_t blocks = snapshot_before(block_ids, num_tokens / block_size);
    if (blocks > 0) {
      const int32_t block = block_ids[static_cast<size_t>(blocks - 1)];
      states.copy(states.snapshot(block), slot);
      states.touch(block);
    }
    return blocks * block_size;
  }

  // The blocks of the longest run of full ones at the front of token_ids, and why it ends.
  std::vector<int32_t> find_prefix(std::span<const int32_t> token_ids, const std::string& salt, PrefixMiss& why) const {
    std::vector<int32_t> found;
    const auto size = static_cast<size_t>(block_size);
    Hash128 hash = kv::PrefixIndex::root_hash(config.identity, salt);
    for (int32_t parent = -1; token_ids.size() >= size; token_ids = token_ids.subspan(size)) {
      hash = index.child_hash(hash, token_ids.first(size));
      const int32_t block = index.find(hash, parent, token_ids.first(size), salt);
      if (block < 0) {
        why = gone.contains(hash) ? PrefixMiss::kEvicted : PrefixMiss::kUnseen;
        break;
      }
      found.push_back(block);
      parent = block;
    }
    return found;
  }

  // A committed step's snapshots become those of its blocks.
  void close_state(KvSequence& sequence);

  // --- the tiers beyond the pool, in kv_cache_tier.cpp; with the mutex held unless it says otherwise ---

  struct Tier {
    std::unique_ptr<kv::BlockTier> blocks;
    Hash128 tag;                    // of all its files
    uint64_t block_bytes = 0;       // of all layers
    std::vector<Hash128> keys;      // [num_blocks], of published blocks
    std::deque<int32_t> unwritten;  // to be written when there is time
    std::vector<bool> listed;       // [num_blocks], there
  };
  void open_tier(std::unique_ptr<kv::BlockTier> blocks);  // before there is a second thread
  // The key of the block with these tokens after that of `before`; none (0) where they are not tokens alone.
  static Hash128 tier_key(const Hash128& before, std::span<const int32_t> tokens);
  static Hash128 tier_root(const std::string& salt);
  Hash128 tier_key_of(int32_t parent, const std::string& salt, std::span<const int32_t> tokens) const;
  kv::TierRecord tier_record(kv::TierKind kind, const Hash128& key, const Hash128& chain,
                             std::span<const int32_t> tokens) const;
  // Bytes of a block, or of its snapshot, go to the tiers, unless they are there.
  std::optional<kv::TierRecord> unwritten(kv::TierKind kind, int32_t block) const;
  std::vector<std::byte> copy_of(kv::TierKind kind, int32_t block);
  void stage(kv::TierKind kind, int32_t block);
  void list_unwritten(int32_t block);
  std::vector<kv::BlockCopy> next_unwritten();  // takes the mutex

  const KvCacheConfig config;
  const int32_t block_size;

  mutable std::mutex mutex;  // guards what follows
  kv::BlockPool pool;
  kv::PrefixIndex index;
  kv::StatePool states;
  kv::EvictedHashes gone;
  int64_t lookup_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t evictions = 0;
  int64_t disk_tokens = 0;
  std::vector<bool> secrets;  // [num_blocks], of held blocks: wiped when they are dropped
  std::map<std::pair<uint64_t, uint64_t>, int32_t> contents;  // halves of a hash
  std::unique_ptr<Tier> tier;                                 // null: there is none
};

// What is on its way from the tiers into a sequence's blocks.
struct KvFetch {
  std::shared_ptr<kv::BlockFetch> fetch;
  int64_t num_blocks = 0;
  std::shared_ptr<std::vector<std::byte>> state;  // behind the last of them; null: the model has none
};

}  // namespace headrace
