// The sequences that a drafter with a model of its own follows: what it has computed of each, in a cache of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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
