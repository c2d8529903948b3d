// One of a request's n texts in the making: its tokens, what of them is computed, and where it stands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <vector>

#include "kv/kv_cache.h"

namespace headrace::schedule {

enum class SequenceState : int32_t {
  kWaiting,  // queued, never scheduled
  kLoading,  // holds room in the cache and a place beside the running ones; its values are on their way from beyond the pool
  kRunning,    // holds room in the cache and takes part in steps
  kPreempted,  // gave its room up and waits to be computed again
  kFinished,   // ended; holds nothing
  kCancelled,  // ended by the host, a deadline or a failure; holds nothing
};

constexpr std::string_view state_name(SequenceState state) {
  constexpr std::string_view kNames[] = {"waiting", "loading", "running", "preempted", "finished", "cancelled"};
  return kNames[static_cast<int>(state)];
}

// Who of one tenant goes first: the lower rank, then the earlier request, then the lower sample.
struct SequenceOrder {
  int64_t rank = 0;
  uint64_t arrival = 0;  // unique per request, rising
  uint32_t index = 0;    // of the sample

  friend bool operator<(const SequenceOrder& a, const SequenceOrder& b) {
    return std::tie(a.rank, a.arrival, a.index) < std::tie(b.rank, b.arrival, b.index);
  }
  bool operator==(const SequenceOrder&) const = default;
};

// The rank of a request of that priority (higher first). With aging, a request gains one priority for every aging_us that
// it waits: what two requests gain from now on is the same, so their order never changes and is that of the times at which
// both would have come with priority 0. Without (0), it is the priority's.
constexpr int64_t rank_of(int32_t priority, int64_t submitted_us, int64_t aging_us) {
  return aging_us > 0 ? submitted_us - priority * aging_us : -int64_t{priority};
}

struct Tenant;

// Used by the stepping thread alone. Tokens are the truth: a sequence that loses its cached values computes the same
// ones again.
struct Sequence {
  static constexpr int64_t kNoRow = std::numeric_limits<int64_t>::max();

  SequenceOrder order;
  Tenant* tenant = nullptr;  // its request's, which keeps it alive
  SequenceState state = SequenceState::kWaiting;
  std::vector<int32_t> token_ids;  // prompt, then output
  int64_t prompt_size = 0;
  int64_t rope_length = 0;  // of its values, whenever they are computed (KvSequence::rope_length)
  KvSequence kv;            // values of a prefix of token_ids
  // Running sequences this one counts as: n while it computes the prompt that its siblings will share, then 1.
  int32_t slots = 1;
  // First position whose logits are wanted besides the last one's (prompt logprobs still to be computed).
  int64_t first_logits_row = kNoRow;
  // First position whose hidden states are still owed.
  int64_t first_hidden_row = kNoRow;
  int64_t num_charged = 0;    // leading positions that the tenant was charged for, or found in the cache
  int32_t num_overtakes = 0;  // later requests of the tenant that were admitted before it

  int64_t size() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_computed() const { return kv.num_tokens(); }
  int64_t num_pending() const { return size() - num_computed(); }  // rows until the next token can be drawn
  // Leading positions whose cached values may serve: the rows behind them have something to give.
  int64_t num_reusable() const { return std::min({size() - 1, first_logits_row, first_hidden_row}); }
  int64_t num_output() const { return size() - prompt_size; }
  bool ended() const { return state == SequenceState::kFinished || state == SequenceState::kCancelled; }
};

}  // namespace headrace::schedule
