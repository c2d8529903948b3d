#include "schedule/invariants.h"

#include <set>
#include <utility>

namespace headrace::schedule {
namespace {

const char* broken_law(const SequenceSnapshot& s, const SchedulerSnapshot& all) {
  const bool waits = s.state == SequenceState::kWaiting || s.state == SequenceState::kPreempted;
  const bool runs = s.state == SequenceState::kRunning;
  const bool loads = s.state == SequenceState::kLoading;
  if (s.in_queue != waits) return "the queue lists exactly what waits";
  if (s.in_running != runs) return "the running list has exactly what runs";
  if (s.in_loading != loads) return "the loading list has exactly what loads";
  if ((waits || runs || loads) && s.last_event_sent) return "a request with a terminal event has nothing left to run";
  if (!waits && !runs && !loads && (s.num_blocks != 0 || s.num_computed != 0))
    return "an ended sequence holds no blocks";
  if (s.state == SequenceState::kPreempted && s.num_blocks != 0) return "a preempted sequence holds no blocks";
  if (s.num_computed < 0 || s.num_computed > s.num_blocks * all.block_size)
    return "stored positions lie in held blocks";
  if (s.prompt_size < 1 || s.prompt_size > s.num_tokens) return "the prompt is a non-empty prefix of the tokens";
  if (loads && s.num_blocks * all.block_size < s.num_tokens) return "what loads has room for all its tokens";
  if ((waits || runs || loads) && s.num_computed >= s.num_tokens) return "one token at least is still to be computed";
  if (s.num_tokens > all.context_limit) return "a sequence fits its context";
  if (s.slots < 1) return "a sequence counts for at least one";
  return nullptr;
}

}  // namespace

Status check_invariants(const SchedulerSnapshot& snapshot) {
  std::set<std::pair<uint64_t, uint32_t>> seen;
  int64_t slots = 0;
  for (const SequenceSnapshot& s : snapshot.sequences) {
    const std::string place = fmt::format("request {} sample {}", s.request_id, s.index);
    if (!seen.emplace(s.request_id, s.index).second) return internal_error(place, "a sequence is listed once");
    if (const char* law = broken_law(s, snapshot)) {
      return internal_error(place, "broken law: {} (state {}, {} of {} tokens computed, {} blocks)", law,
                            state_name(s.state), s.num_computed, s.num_tokens, s.num_blocks);
    }
    if (s.state == SequenceState::kRunning || s.state == SequenceState::kLoading) slots += s.slots;
  }
  if (slots > snapshot.max_num_seqs) {
    return internal_error("scheduler", "{} sequences run or load, {} may", slots, snapshot.max_num_seqs);
  }
  if (snapshot.free_blocks < 0 || snapshot.free_blocks > snapshot.pool_blocks) {
    return internal_error("kv", "{} of {} blocks are free", snapshot.free_blocks, snapshot.pool_blocks);
  }
  return {};
}

}  // namespace headrace::schedule
