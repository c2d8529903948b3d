// The sequences that a drafter with a model of its own follows: what it has computed of each, in a cache of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "speculation/drafter.h"

namespace headrace::speculation {

struct DraftSequence {
  KvSequence kv;
  std::vector<int32_t> tokens;  // whose rows are in kv, and those that are to come
  uint64_t round = 0;           // in which it was last followed

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_pending() const { return size() - kv.num_tokens(); }
};

// Room for a sequence's rows up to `end`, be it that of others, whose `round` is before this one: the one that was followed the
// longest ago is forgotten first. False where there is none.
template <class Sequence>
bool reserve_room(KvCache& cache, std::map<SequenceId, Sequence>& sequences, uint64_t round, KvSequence& kv,
                  int64_t end) {
  for (;;) {
    const Status status = cache.reserve(kv, end);
    if (status.ok()) return true;
    if (status.code() != StatusCode::kResourceExhausted) return false;
    auto victim = sequences.end();
    for (auto it = sequences.begin(); it != sequences.end(); ++it) {
      if (it->second.round == round || it->second.kv.block_ids().empty()) continue;
      if (victim == sequences.end() || it->second.round < victim->second.round) victim = it;
    }
    if (victim == sequences.end()) return false;
    sequences.erase(victim);
  }
}

// A sequence whose next row is row `first` of `tokens`. The rows before it are the index's; where it lacks some of them there are
// none, and the sequence's own row 0 is row `begin`.
struct BegunSequence {
  KvSequence kv;
  int64_t begin = 0;
};
// salt: that rows with all before them are found by.
BegunSequence begin_at(KvCache& cache, const DraftContext& context, std::string salt, std::span<const int32_t> tokens,
                       int64_t first);

// Whether a head with so many positions and tokens can follow a sequence.
bool is_readable(std::span<const int32_t> tokens, int64_t longest, int32_t vocab_size);

class DraftSequences {
 public:
  explicit DraftSequences(std::shared_ptr<KvCache> cache) : cache_(std::move(cache)) {}

  KvCache& cache() { return *cache_; }
  // Sequences followed from here on are kept while others give their room up.
  void begin_round() { ++round_; }
  // The sequence with the context's tokens. Of its values those of the common front stay, or what the prefix index has of a
  // new one is taken; the last token's row is always still to come.
  DraftSequence& follow(const DraftContext& context);
  // Room up to position `end`, be it that of sequences that were not followed in this round. False where there is none.
  bool reserve(DraftSequence& sequence, int64_t end);
  void end(const SequenceId& id) { sequences_.erase(id); }
  size_t size() const { return sequences_.size(); }

 private:
  std::shared_ptr<KvCache> cache_;
  std::map<SequenceId, DraftSequence> sequences_;
  uint64_t round_ = 0;
};

}  // namespace headrace::speculation
