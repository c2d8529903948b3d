// Laws of the scheduler's books, checked after every step in debug builds and in tests.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "schedule/sequence.h"

namespace headrace::schedule {

// One sequence as the books show it.
struct SequenceSnapshot {
  uint64_t request_id = 0;
  uint32_t index = 0;
  SequenceState state = SequenceState::kWaiting;
  int32_t slots = 1;
  int64_t num_tokens = 0;
  int64_t prompt_size = 0;
  int64_t num_computed = 0;
  int64_t num_blocks = 0;  // held
  bool in_queue = false;   // listed as waiting
  bool in_running = false;
  bool in_loading = false;
  bool last_event_sent = false;  // of its request
};

struct SchedulerSnapshot {
  int64_t max_num_seqs = 0;
  int64_t context_limit = 0;  // tokens of one sequence
  int32_t block_size = 1;
  int64_t pool_blocks = 0;
  int64_t free_blocks = 0;
  std::vector<SequenceSnapshot> sequences;
};

// kInternal naming the sequence and the law that does not hold.
Status check_invariants(const SchedulerSnapshot& snapshot);

}  // namespace headrace::schedule
