// The paged KV cache of one model: a pool of blocks, sequences that hold them, and the index of prefixes seen
// before.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "base/device_memory.h"
#include "base/hash.h"
#include "base/status.h"
#include "kv/tier_stats.h"
#include "tensor/kv_layout.h"

namespace headrace {

namespace kv {
class BlockTier;
}

struct KvCacheConfig {
  // One for each part of the cache, of a layer one or more, all with the same dtype and block_size. Without KV heads
  // where a layer keeps nothing, but not all of them unless there is recurrent state.
  std::vector<KvLayout> layers;
  int64_t num_blocks = 0;
  std::shared_ptr<DeviceMemory> memory = nullptr;  // where the blocks are; null: in the program's
  // Recurrent state of one sequence over all layers; 0: the model has none, and the rest below counts for nothing.
  uint64_t state_floats = 0;
  int32_t num_states = 0;         // sequences with stored positions that there is room for, at least 1
  int32_t max_snapshots = 0;      // states kept beside them
  int32_t snapshot_interval = 0;  // tokens between snapshots, a multiple of the block size; 0: none are made
  bool prefix_index = true;
  bool zero_retention = false;  // every sequence is secret (KvCache::new_sequence)
  // Everything that changes the meaning of cached values beside the tokens: model content, weight version,
  // rope, window, activations. Part of every block's hash and of saved files.
  Hash128 identity;
  // Bits kept of both halves of a block's hash. Tests set 0, so that all blocks collide.
  uint64_t hash_mask = ~uint64_t{0};
};

struct KvCacheStats {
  int64_t num_blocks = 0;     // in the pool
  int64_t free_blocks = 0;    // held by nobody: empty ones and cached ones that may be evicted
  int64_t cached_blocks = 0;  // in the prefix index, held or not
  int64_t lookup_tokens = 0;  // asked of match_prefix so far
  int64_t hit_tokens = 0;     // found there
  int64_t evictions = 0;      // cached blocks whose contents gave way to others
  uint64_t pool_bytes = 0;    // of blocks and states
  int64_t num_states = 0;     // slots for recurrent states, of sequences and snapshots
  int64_t free_states = 0;    // not the current state of a sequence
  int64_t num_snapshots = 0;
  int64_t disk_tokens = 0;  // of positions that came from memory beyond the pool, or from disk
  KvHostStats host;
  KvDiskStats disk;
};

// Why match_prefix found no more.
enum class PrefixMiss : int32_t {
  kNone = 0,    // all that was asked for was found, but for less than a block
  kUnseen,      // no sequence of this salt had these tokens here
  kEvicted,     // one had, and its block gave way to others
  kNoSnapshot,  // blocks are there, but no recurrent state
  kIndexOff,
};

// Where a step is to leave a copy of a sequence's state.
struct KvStateSnapshot {
  int64_t position = 0;    // after the row before this position
  float* state = nullptr;  // [state_floats]
};

class KvCache;
struct KvFetch;

// The blocks of one sequence: block_ids()[i] holds positions [i * block_size, (i + 1) * block_size). Movable;
// gives its blocks back when destroyed. Keeps the cache alive.
class KvSequence {
 public:
  KvSequence() = default;
  KvSequence(KvSequence&&) noexcept;
  KvSequence& operator=(KvSequence&&) noexcept;
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;
  ~KvSequence();

  const std::vector<int32_t>& block_ids() const { return block_ids_; }
  // Positions whose keys and values are stored and valid.
  int64_t num_tokens() const { return num_tokens_; }
  // Which rotation its keys have, of a model that rotates sequences by their length (model/rope_length.h): sequences of
  // different ones never share blocks.
  int64_t rope_length() const { return rope_length_; }
  // Whether blocks are on their way from memory beyond the pool or from disk (KvCache::begin_fetch).
  bool fetching() const { return fetch_ != nullptr; }
  // Of a sequence that leaves nothing behind (KvCache::new_sequence).
  bool secret() const { return secret_; }

 private:
  friend class KvCache;
  std::shared_ptr<KvCache> cache_;
  std::vector<int32_t> block_ids_;
  int64_t num_tokens_ = 0;
  int64_t num_published_ = 0;  // leading blocks that are in the prefix index
  int64_t rope_length_ = 0;
  std::shared_ptr<const std::string> salt_;  // with the rope length in it
  bool secret_ = false;
  std::shared_ptr<KvFetch> fetch_;
  // Of a model with recurrent state:
  int32_t state_slot_ = -1;  // the state after num_tokens_ positions; -1: none is stored
  int64_t open_end_ = -1;    // a step has opened the state and will leave it there; -1: it is closed
  std::vector<std::pair<int64_t, int32_t>> pending_;  // position and slot of snapshots of that step
};

// A model with recurrent state has beside its blocks one state per sequence, after the last stored position. It cannot
// be cut, so where fewer positions are kept, the state is taken from the last snapshot before, and what lies after the
// snapshot counts as not stored: match_prefix and rewind may leave fewer positions than the blocks hold. Snapshots
// belong to full blocks, are shared with them, and are forgotten with them.
//
// A block that nobody holds keeps its published contents until its memory is needed; the least recently
// released goes first, and of one sequence the last block first, so that a block in the index never outlives
// its parent. Thread rule: bookkeeping is guarded inside and may be called from any thread, one call per
// sequence at a time; the bytes of a block are written only by the step that reserved it.
class KvCache : public std::enable_shared_from_this<KvCache> {
 public:
  // Allocates the pool (zeroed; memory is used as blocks are); kOutOfMemory when that fails, kInvalidArgument
  // for a configuration that cannot hold a token.
  // `tier` (may be null): where blocks go that lose their place in the pool, and where they are found again.
  static Result<std::shared_ptr<KvCache>> create(KvCacheConfig config, std::unique_ptr<kv::BlockTier> tier);
  static Result<std::shared_ptr<KvCache>> create(KvCacheConfig config);

  const KvCacheConfig& config() const;
  int32_t block_size() const;
  KvCacheStats stats() const;

  // The blocks of one of config().layers: [num_blocks][layers[layer].block_bytes()].
  std::byte* layer_data(int32_t layer);

  // A number below 0 that stands in token_ids for what is no token, an image say: the same for equal contents, for as long as
  // the cache lives. Not of sequences that are saved.
  int32_t content_id(const Hash128& content);

  // An empty sequence. Sequences with different salts (tenants, say) never share blocks. What a secret one computes is never
  // published or written to disk, and wiped when it is dropped.
  KvSequence new_sequence(std::string salt = {}, int64_t rope_length = 0, bool secret = false);

  // For an empty sequence: takes the longest run of full blocks whose tokens equal the front of token_ids
  // (compared token by token, not by hash alone), at most max_tokens. Returns the positions now stored: 0 for
  // a sequence that has some already, which is left alone.
  int64_t match_prefix(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens,
                       PrefixMiss* miss = nullptr);

  // The positions that match_prefix would give a new sequence of that salt and rope length now, less what a missing snapshot takes off;
  // nothing is held, counted or refreshed.
  int64_t peek_prefix(std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt,
                      int64_t rope_length = 0) const;

  // Of a fetch that would end at that position, and take so long by what reads took so far (0: unknown): whether to begin it.
  using FetchJudge = std::function<bool(int64_t end, double ns)>;
  // For a sequence that was matched: looks in the tiers for the full blocks behind those it has, at most to max_tokens, reserves
  // them and begins to read, unless is_worth (may be empty) says that it is not. Returns the position up to which values are on their way; num_tokens() where there are none, or no
  // room. Meanwhile the sequence can be released or rewound, which ends it; nothing else. token_ids are those of commit.
  int64_t begin_fetch(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens,
                      const FetchJudge& is_worth);
  bool fetch_done(const KvSequence& sequence) const;
  void wait_fetch(const KvSequence& sequence, std::chrono::milliseconds limit) const;
  // What arrived counts as stored from here on, as if it had been computed; num_tokens() is returned. What of it could not be
  // read is to be computed.
  int64_t end_fetch(KvSequence& sequence, std::span<const int32_t> token_ids);
  // match_prefix, and what the tiers have behind it, waited for.
  int64_t match_and_fetch(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens);
  // Waits until all published blocks are on disk, as far as they fit there.
  void flush_disk();
  // Of tests whose tier has no thread.
  kv::BlockTier* block_tier();

  // Makes room for positions [sequence.num_tokens(), num_tokens): new blocks, and a private copy of a shared
  // or published last block that would be written. kResourceExhausted, and nothing changed, when the pool has
  // too few (or, for a first position, every state is in use); kInvalidArgument for a sequence of another cache,
  // kFailedPrecondition while its state is open.
  Status reserve(KvSequence& sequence, int64_t num_tokens);
  // The state of a reserved sequence, for a step that computes positions [num_tokens(), end) of it: zero before the
  // first. The step leaves the state after `end` there, and copies where `snapshots` (appended to, rising) says. Then
  // commit(end), or a rewind. Null for a model without state.
  // With row_states [end - num_tokens() - 1, state_floats] snapshots ask for the state after every position but the last, most
  // of them there: the step may then keep fewer positions (keep_rows).
  float* open_state(KvSequence& sequence, int64_t end, std::vector<KvStateSnapshot>& snapshots,
                    float* row_states = nullptr);
  // The step was run, and only positions up to num_tokens (above num_tokens()) count: commit(num_tokens) comes next, or a
  // rewind. row_states as the state was opened with. Nothing to do for a model without state.
  void keep_rows(KvSequence& sequence, int64_t num_tokens, const float* row_states);
  // Where position p of a reserved sequence is stored.
  int64_t slot(const KvSequence& sequence, int64_t position) const;

  // The step wrote positions up to num_tokens; token_ids are all of the sequence's tokens so far (at least
  // num_tokens). Full blocks are published to the prefix index (unless it is off); where the index has the
  // same contents already, the sequence takes that block and gives its own back, so block_ids() may change.
  // kInvalidArgument, and nothing changed, for fewer tokens than are stored, more than there is room for, or
  // tokens that contradict earlier ones, or another end than the one its state was opened for.
  Status commit(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t num_tokens);

  // Another sequence with the same stored positions, sharing the blocks (copy on write); not the room beyond
  // them. One without stored positions where no state is left for it.
  KvSequence fork(const KvSequence& sequence);
  // Forgets positions from num_tokens on, and room reserved beyond them; of a model with recurrent state, or after a
  // step that was not committed, positions from the last snapshot on.
  void rewind(KvSequence& sequence, int64_t num_tokens);
  // Gives all blocks back; published ones stay in the index until they are evicted.
  void release(KvSequence& sequence);
  // Drops every unheld published block, and the files of this cache's kind on disk.
  void clear_prefix_index();

  // Writes the stored positions, their tokens and a checksum, in a form that names its layout version, the
  // identity and the layers' layouts (kv/kv_file.h). `write` appends bytes and reports failure.
  using WriteCallback = std::function<Status(std::span<const std::byte>)>;
  Status save(const KvSequence& sequence, std::span<const int32_t> token_ids, const WriteCallback& write) const;
  // Reads such a file into a new sequence and gives its tokens. kMalformed for damage (checksum, truncation),
  // kFailedPrecondition for another model, layout or version, kResourceExhausted when the pool has too few
  // blocks. Takes nothing from the pool when it fails. The blocks are published under `salt`: files that
  // their sender could have forged belong under a salt of their own. Values of another rope_length than the one asked for
  // are those of another model.
  struct Restored;
  Result<Restored> restore(ByteSource& source, std::string salt = {}, int64_t rope_length = 0);

  // Laws of the pool (counts, references, index), checked after every step in debug and fuzz builds. With
  // all_sequences (every live sequence of this cache) also that the references are theirs, and each
  // sequence's own laws.
  Status check_invariants() const;
  Status check_invariants(std::span<const KvSequence* const> all_sequences) const;

 private:
  friend class KvSequence;
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;

 public:
  ~KvCache();
};

struct KvCache::Restored {
  KvSequence sequence;
  std::vector<int32_t> token_ids;
};

}  // namespace headrace
