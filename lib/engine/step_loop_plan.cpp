// The first half of a step: which rows of which sequences it computes, and room for them in the cache.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/session.h"
#include "engine/step_loop.h"

namespace headrace::engine {

using schedule::FairShare;
using schedule::SequenceState;
using schedule::StepBudget;
using schedule::StepDemand;
using schedule::Tenant;

StepDemand StepLoop::demand_of(const Sample& sample) {
  const schedule::Sequence& sequence = sample.sequence;
  StepDemand demand;
  demand.num_pending = sequence.num_pending();
  demand.num_silent = demand.num_pending - 1;
  if (sequence.first_logits_row != schedule::Sequence::kNoRow) {
    demand.num_silent = std::clamp<int64_t>(sequence.first_logits_row - sequence.num_computed(), 0, demand.num_silent);
  }
  demand.slots = sequence.slots;
  demand.first_row = sequence.num_computed();
  demand.uncut = sample.request.uncut;
  return demand;
}

int64_t StepLoop::running_slots() const {
  int64_t slots = 0;
  for (const Sample* sample : running_) slots += sample->sequence.slots;
  for (const Sample* sample : loading_) slots += sample->sequence.slots;
  return slots;
}

Sample& StepLoop::sample_of(const schedule::Sequence& sequence) const {
  return *requests_.at(sequence.order.arrival)->samples[sequence.order.index];
}

void StepLoop::plan() {
  fair_.refresh(model_->executor->clock_ns());
  take_loaded();
  make_way();
  short_of_room_ = false;
  StepBudget budget(limits_, &cost_);
  std::sort(running_.begin(), running_.end(),
            [](const Sample* a, const Sample* b) { return a->sequence.order < b->sequence.order; });
  // Each decoding sequence gets its row; prompts share what is left, of rows and of time.
  const std::vector<Sample*> order = running_;
  std::vector<Sample*> prompts;
  for (Sample* sample : order) {
    if (sample->sequence.state != SequenceState::kRunning) continue;  // preempted meanwhile, or failed
    if (sample->sequence.num_pending() > 1) {
      prompts.push_back(sample);
    } else if (policy_.max_events == 0 || sample->request.num_unread.load() < policy_.max_events) {
      grant_rows(*sample, budget);
    }
  }
  if (!entries_.empty()) add_guesses(budget);
  plan_prompts(prompts, budget);
  std::erase_if(entries_, [](const Entry& entry) { return entry.sample->sequence.state != SequenceState::kRunning; });
}

// Decoding sequences wait for a step's prompts.
StepLoop::PromptTime StepLoop::prompt_time(const std::vector<Sample*>& prompts, const StepBudget& budget) const {
  PromptTime time;
  time.slots = running_slots();
  time.weights = fair_.total_weight();
  if (entries_.empty()) return time;
  const double alone_ns = cost_.predict_ns(budget.work());
  if (policy_.max_gap_ns > 0.0) {
    time.ns = time.behind_ns = policy_.max_gap_ns - alone_ns;
    return time;
  }
  if (policy_.max_gap_ratio <= 0.0) return time;
  double ratio = policy_.max_gap_ratio;
  if (fair_.active().size() == 1) {
    const int64_t places = std::max<int64_t>(limits_.max_num_seqs - running_slots(), 0);
    const auto waiting = static_cast<int64_t>(prompts.size()) + std::min(places, static_cast<int64_t>(queue_.size()));
    const double burst = 1.0 + static_cast<double>(waiting);
    ratio = std::max(ratio, std::min(burst, policy_.max_burst_gap_ratio));
  }
  time.ns = (ratio - 1.0) * alone_ns;
  time.behind_ns = (std::max(ratio, policy_.max_tenant_gap_ratio) - 1.0) * alone_ns;
  return time;
}

// Prompts that run and requests that wait, each time the next of the tenant that received the least, of those behind first: what
// others receive by decoding is cheap for their tokens, not for the time of a step.
void StepLoop::plan_prompts(std::vector<Sample*>& prompts, StepBudget& budget) {
  // Whoever gave its blocks up a moment ago would take them back from who needs them. Where all places are taken nobody is looked
  // at: that reads whole prompts.
  const auto has_place = [&] { return running_slots() < limits_.max_num_seqs; };
  bool admitting = !short_of_room_ && has_place();
  std::vector<const Tenant*> passed;  // whose waiting requests all have a reason to wait on
  const PromptTime time = prompt_time(prompts, budget);
  const auto limit_prompts = [&](bool behind) {
    budget.limit_prompts(behind ? time.behind_ns : time.ns, policy_.min_prompt_rows);
  };
  while (budget.rows_left() > 0) {
    const Tenant* turn = nullptr;
    Sample* prompt = nullptr;
    bool turn_behind = false;
    int64_t turn_rows = 0;
    for (const auto& tenant : fair_.active()) {
      const auto running = std::find_if(prompts.begin(), prompts.end(),
                                        [&](const Sample* sample) { return sample->request.tenant == tenant; });
      const bool waits =
          admitting && may_begin(*tenant) && std::find(passed.begin(), passed.end(), tenant.get()) == passed.end();
      if (running == prompts.end() && !waits) continue;
      const schedule::Sequence* const head = waits ? *queue_.line(tenant.get())->begin() : nullptr;
      const bool goes_on = running != prompts.end() && (head == nullptr || (*running)->sequence.order < head->order);
      const bool behind = time.behind(*tenant, !goes_on);
      const int64_t rows = goes_on ? (*running)->sequence.num_pending() : head->num_pending();
      if (turn != nullptr) {
        // Of two that wait for others and received about the same, the one that is done sooner.
        const bool sooner = behind && turn_behind && rows != turn_rows &&
                            fair_.near(*tenant, *turn, static_cast<double>(limits_.max_num_batched_tokens));
        const bool first = behind != turn_behind ? behind : sooner ? rows < turn_rows : fair_.before(*tenant, *turn);
        if (!first) continue;
      }
      limit_prompts(behind);
      if (budget.full()) continue;
      turn = tenant.get();
      turn_behind = behind;
      turn_rows = rows;
      prompt = goes_on ? *running : nullptr;
    }
    if (turn == nullptr) return;
    limit_prompts(turn_behind);
    if (prompt != nullptr) {
      std::erase(prompts, prompt);
      if (prompt->sequence.state == SequenceState::kRunning) grant_rows(*prompt, budget);
      admitting = admitting && !short_of_room_;
    } else if (Sample* const next = candidate(*turn)) {
      // Strictly in order: a small request that overtook a large one would keep it waiting for ever. One whose values come from
      // disk has its place and its room, and others go on.
      admitting = admit(*next, budget) && has_place();
    } else {
      passed.push_back(turn);
    }
  }
}

// ---- who is next ----

// Whether one of the tenant's requests waits, and its rate lets it begin.
bool StepLoop::may_begin(const Tenant& tenant) const {
  return queue_.line(&tenant) != nullptr && FairShare::allowed(tenant);
}

// Whether the tenant may run that many sequences more; one request that alone is more than its limit may run alone.
bool StepLoop::within_limit(const Tenant& tenant, int64_t more) const {
  if (tenant.limits.max_num_seqs == 0 || tenant.metrics.num_running == 0) return true;
  for (const auto* list : {&running_, &loading_}) {
    for (const Sample* sample : *list) more += sample->sequence.tenant == &tenant ? sample->sequence.slots : 0;
  }
  return more <= tenant.limits.max_num_seqs;
}

// The tenant's request that is to be admitted next: the first of its line, or one of those behind it that finds more of its
// prompt computed. Null where all have a reason to wait on.
Sample* StepLoop::candidate(const Tenant& tenant) {
  const schedule::RequestQueue::Line* line = queue_.line(&tenant);
  if (line == nullptr) return nullptr;
  Sample* best = nullptr;
  int64_t longest = 0;
  int32_t seen = 0;
  for (schedule::Sequence* sequence : *line) {
    if (seen++ == policy_.prefix_window) break;
    Sample& sample = sample_of(*sequence);
    if (best != nullptr && sample.request.params.priority != best->request.params.priority) break;
    if (!within_limit(tenant, sequence->slots)) break;
    if (waits_for_prefix(sample)) continue;
    if (best == nullptr) {
      best = &sample;
      if (policy_.prefix_window == 1 || sequence->num_overtakes >= policy_.max_overtakes) break;
      longest = cached_prefix(sample);
      continue;
    }
    const int64_t cached = cached_prefix(sample);
    if (cached <= longest) continue;
    best = &sample;
    longest = cached;
  }
  return best;
}

// Positions of a waiting sequence that it would find computed.
int64_t StepLoop::cached_prefix(const Sample& sample) const {
  const schedule::Sequence& sequence = sample.sequence;
  if (!sequence.kv.block_ids().empty()) return sequence.num_computed();
  return kv_cache_->peek_prefix(sequence.token_ids, sequence.num_reusable(), sample.request.salt, sequence.rope_length);
}

// Whether a running request of the tenant is computing, or one is loading, blocks that this one could use: it waits for them rather than compute
// them too. A tenant never waits for another's service.
bool StepLoop::waits_for_prefix(Sample& sample) {
  const schedule::Sequence& sequence = sample.sequence;
  if (!kv_cache_->config().prefix_index || !sequence.kv.block_ids().empty()) return false;
  const int64_t block_size = kv_cache_->block_size();
  const int64_t reusable = sequence.num_reusable();
  int64_t cached = -1;
  for (const auto* list : {&running_, &loading_}) {
    for (const Sample* other : *list) {
      const schedule::Sequence& ahead = other->sequence;
      if (ahead.tenant != sequence.tenant || ahead.rope_length != sequence.rope_length || ahead.num_pending() < 2)
        continue;
      if (other->request.salt != sample.request.salt || ahead.kv.secret()) continue;
      const auto end = static_cast<ptrdiff_t>(std::min(reusable, ahead.size()));
      const auto front = sequence.token_ids.begin();
      const int64_t common = std::mismatch(front, front + end, ahead.token_ids.begin()).first - front;
      const int64_t shared = common / block_size * block_size;
      if (shared <= ahead.num_computed()) continue;  // those are there already
      if (cached < 0) cached = cached_prefix(sample);
      if (shared <= cached) continue;
      if (!std::exchange(sample.request.waited_for_prefix, true)) ++metrics_.prefix_waits;
      return true;
    }
  }
  return false;
}

// Whether a is the first to give its room up: of a tenant with more than its share, then the later in order. Of a tenant above
// its share there are two at least, so the first in order of all is never the one while there are others: it gets to its end.
bool StepLoop::gives_way_before(const Sample& a, const Sample& b) const {
  const bool above_a = fair_.above_share(*a.request.tenant, limits_.max_num_seqs);
  const bool above_b = fair_.above_share(*b.request.tenant, limits_.max_num_seqs);
  if (above_a != above_b) return above_a;
  return b.sequence.order < a.sequence.order;
}

// A tenant below its share of the sequences that finds no place gets those of tenants above theirs.
void StepLoop::make_way() {
  const Tenant* const without_room = std::exchange(without_room_, nullptr);
  if (queue_.empty() || fair_.active().size() < 2) return;
  // The one that would be admitted next: room made for another one would not be its own.
  const Tenant* starved = nullptr;
  for (const auto& tenant : fair_.active()) {
    if (may_begin(*tenant) && (starved == nullptr || fair_.before(*tenant, *starved))) starved = tenant.get();
  }
  const int64_t share = starved == nullptr ? 0 : fair_.share(*starved, limits_.max_num_seqs);
  if (starved == nullptr || starved->metrics.num_running >= share) return;  // before prompts are looked at
  const Sample* const head = candidate(*starved);
  if (head == nullptr) return;
  if (starved->metrics.num_running + head->sequence.slots > share) return;
  const int64_t blocks = head->sequence.size() / kv_cache_->block_size() + 1 + static_cast<int64_t>(running_.size());
  const auto fits = [&] {
    return running_slots() + head->sequence.slots <= limits_.max_num_seqs &&
           (without_room != starved || kv_cache_->stats().free_blocks >= blocks);
  };
  while (!fits()) {
    const auto victim = std::min_element(running_.begin(), running_.end(),
                                         [&](const Sample* a, const Sample* b) { return gives_way_before(*a, *b); });
    if (victim == running_.end() || !fair_.above_share(*(*victim)->request.tenant, limits_.max_num_seqs)) return;
    preempt(**victim);
  }
}

// ---- room ----

void StepLoop::enqueue(Sample& sample) {
  fair_.activate(sample.request.tenant);
  if (!queue_.push(&sample.sequence)) return;
  ++sample.request.tenant->metrics.num_waiting;
  sample.request.tenant->changed = true;
}

void StepLoop::dequeue(Sample& sample) {
  if (!queue_.remove(&sample.sequence)) return;
  --sample.request.tenant->metrics.num_waiting;
  sample.request.tenant->changed = true;
}

// The caller has made room in running_.
void StepLoop::start_running(Sample& sample) {
  if (sample.sequence.state == SequenceState::kPreempted) {
    trace(sample, "resumed", "kept_tokens", sample.sequence.num_computed());
  }
  running_.push_back(&sample);
  sample.sequence.state = SequenceState::kRunning;
  ++sample.request.tenant->metrics.num_running;
  sample.request.tenant->changed = true;
}

void StepLoop::stop_running(Sample& sample) {
  if (std::erase(running_, &sample) + std::erase(loading_, &sample) == 0) return;
  --sample.request.tenant->metrics.num_running;
  sample.request.tenant->changed = true;
}

// Gives its room up and waits to be computed again.
void StepLoop::start_over(Sample& sample) {
  enqueue(sample);  // first: it may find no memory
  trace(sample, "preempted", "computed_tokens", sample.sequence.num_computed());
  kv_cache_->release(sample.sequence.kv);
  stop_running(sample);
  sample.sequence.state = SequenceState::kPreempted;
}

void StepLoop::preempt(Sample& sample) {
  start_over(sample);
  ++metrics_.preemptions;
  ++sample.request.tenant->metrics.preemptions;
}

// A sequence that its rotation no longer serves takes that of its length, and is computed again.
void StepLoop::start_over_if_outgrown(Sample& sample) {
  schedule::Sequence& sequence = sample.sequence;
  if (sequence.size() <= model_->executor->longest_of_rope_length(sequence.rope_length)) return;
  start_over(sample);
  sequence.rope_length = model_->executor->rope_length(sequence.size());
}

// A running sequence takes part in the step with what the budget has for it.
void StepLoop::grant_rows(Sample& sample, StepBudget& budget) {
  const StepDemand demand = demand_of(sample);
  const schedule::StepGrant grant = budget.take(demand);
  if (grant.num_rows == 0) return;
  if (!reserve(sample, demand.first_row + grant.num_rows, budget)) return budget.refund(grant, demand);
  enter(sample, grant, demand);
}

void StepLoop::enter(Sample& sample, const schedule::StepGrant& grant, const StepDemand& demand) {
  Entry& entry = entries_.emplace_back();
  entry.sample = &sample;
  entry.start = demand.first_row;
  entry.decoding = demand.decoding();
  entry.paths.emplace_back().grant = grant;
  if (!demand.decoding()) {
    fair_.begin_turn(*sample.request.tenant);
    trace(sample, "prompt_rows", "rows", grant.num_rows);
  }
  // What a preempted sequence computes again was not its tenant's wish.
  schedule::Sequence& sequence = sample.sequence;
  const int64_t end = std::min(demand.first_row + grant.num_rows, sequence.prompt_size);
  sequence.num_charged = std::max(sequence.num_charged, std::min(demand.first_row, sequence.prompt_size));
  if (end <= sequence.num_charged) return;
  fair_.charge_prompt(*sample.request.tenant, end - sequence.num_charged);
  sequence.num_charged = end;
}

// Room for a running sequence up to position `end`: of waiting and idle ones, then of the running one that is first to give
// way, be it this one: it lacks a block even when it is alone where a shared block must be copied, and does not need the copy
// once it starts over. False where it gave way or failed.
bool StepLoop::reserve(Sample& sample, int64_t end, StepBudget& budget) {
  for (;;) {
    Status status = kv_cache_->reserve(sample.sequence.kv, end);
    if (status.ok()) return true;
    if (status.code() != StatusCode::kResourceExhausted) {
      fail(sample.request, std::move(status));
      return false;
    }
    if (shed_branches(budget) || shed_waiting(sample) || model_->shed_idle_session(*kv_cache_) || shed_loading())
      continue;
    short_of_room_ = true;
    Sample& victim = **std::min_element(running_.begin(), running_.end(),
                                        [&](const Sample* a, const Sample* b) { return gives_way_before(*a, *b); });
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.sample == &victim; });
    if (entry != entries_.end()) {
      budget.refund(entry->own().grant, demand_of(victim));
      entries_.erase(entry);
    }
    preempt(victim);
    if (&victim == &sample) return false;
  }
}

// Values of sessions whose requests still wait: the last in the queue gives them up first.
bool StepLoop::shed_waiting(const Sample& keep) {
  const auto& all = queue_.all();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    schedule::Sequence* sequence = *it;
    if (sequence == &keep.sequence || sequence->kv.block_ids().empty()) continue;
    kv_cache_->release(sequence->kv);
    return true;
  }
  return false;
}

// A sequence whose values are on their way from disk gives its room up and waits again: the last in order first.
bool StepLoop::shed_loading() {
  if (loading_.empty()) return false;
  preempt(**std::max_element(loading_.begin(), loading_.end(),
                             [](const Sample* a, const Sample* b) { return a->sequence.order < b->sequence.order; }));
  return true;
}

// Of a prompt of which `reusable` positions could have been found.
ReuseMiss StepLoop::reuse_miss_of(const schedule::Sequence& sequence, int64_t reusable, PrefixMiss miss) const {
  switch (miss) {
    case PrefixMiss::kUnseen: return ReuseMiss::kUnseen;
    case PrefixMiss::kEvicted: return ReuseMiss::kEvicted;
    case PrefixMiss::kNoSnapshot: return ReuseMiss::kNoSnapshot;
    case PrefixMiss::kIndexOff: return ReuseMiss::kIndexOff;
    case PrefixMiss::kNone: break;
  }
  if (reusable < sequence.size() - 1) {
    return sequence.first_hidden_row == reusable ? ReuseMiss::kHiddenStates : ReuseMiss::kPromptLogprobs;
  }
  return reusable < kv_cache_->block_size() ? ReuseMiss::kShort : ReuseMiss::kNone;
}

bool StepLoop::make_room_for(Sample& sample, StepBudget& budget) {
  schedule::Sequence& sequence = sample.sequence;
  const int64_t reusable = sequence.num_reusable();
  if (sequence.kv.num_tokens() > reusable) kv_cache_->rewind(sequence.kv, reusable);
  bool fresh = sequence.kv.block_ids().empty();
  if (!fresh && !sample.request.scheduled) sample.request.reuse_miss = ReuseMiss::kNone;
  if (fresh) {
    sequence.kv =
        kv_cache_->new_sequence(sample.request.salt, sequence.rope_length, sample.request.params.zero_retention);
    PrefixMiss miss = PrefixMiss::kNone;
    kv_cache_->match_prefix(sequence.kv, sequence.token_ids, reusable, &miss);
    if (!sample.request.scheduled) sample.request.reuse_miss = reuse_miss_of(sequence, reusable, miss);
  }
  for (;;) {
    // Room for the whole prompt at once: two half-computed prompts must not wait for each other's blocks.
    const Status status = kv_cache_->reserve(sequence.kv, sequence.size());
    if (status.ok()) break;
    if (status.code() == StatusCode::kResourceExhausted) {
      if (shed_branches(budget) || shed_waiting(sample) || model_->shed_idle_session(*kv_cache_)) continue;
      if (!fresh && running_.empty()) {
        // A session's last block may need a copy that there is no room for; found in the index it needs none.
        kv_cache_->release(sequence.kv);
        kv_cache_->match_prefix(sequence.kv, sequence.token_ids, reusable);
        fresh = true;
        continue;
      }
    }
    if (fresh) kv_cache_->release(sequence.kv);
    return false;
  }
  // Each running sequence may need another block soon; taking the last ones would only have this one preempted.
  while (!running_.empty() && kv_cache_->stats().free_blocks < static_cast<int64_t>(running_.size())) {
    if (shed_branches(budget)) continue;
    if (fresh) {
      kv_cache_->release(sequence.kv);
    } else {
      kv_cache_->rewind(sequence.kv, sequence.kv.num_tokens());
    }
    return false;
  }
  return true;
}

void StepLoop::mark_scheduled(LiveRequest& request) {
  if (request.scheduled) return;
  request.scheduled = true;
  request.queue_ns = request.since_submit_ns();
  --num_unscheduled_;
  ++request.tenant->newly_scheduled;
  request.tenant->changed = true;
}

// A request begins for the first time.
void StepLoop::count_start(LiveRequest& request, int64_t cached_tokens) {
  request.cached_tokens = cached_tokens;
  mark_scheduled(request);
  schedule::TenantMetrics& tenant = request.tenant->metrics;
  const auto prompt = static_cast<uint64_t>(request.prompt.size()), cached = static_cast<uint64_t>(cached_tokens);
  metrics_.prompt_tokens += prompt;
  tenant.prompt_tokens += prompt;
  metrics_.cached_tokens += cached;
  tenant.cached_tokens += cached;
  trace(request, 0, {.name = "scheduled", .value_name = "cached_tokens", .value = cached_tokens});
  metrics_.queue.record(request.queue_ns);
  tenant.queue.record(request.queue_ns);
}

// Nothing runs, nothing can be given up, and all that is held is pinned: waiting would not help.
void StepLoop::fail_if_pinned_out(Sample& sample) {
  const int64_t pinned = model_->pinned_blocks(*kv_cache_);
  const KvCacheStats pool = kv_cache_->stats();
  if (pinned == 0 || pool.num_blocks - pool.free_blocks > pinned) return;
  fail(sample.request, resource_exhausted("kv cache", "{} tokens do not fit: pinned sessions hold {} of {} blocks",
                                          sample.sequence.size(), pinned, pool.num_blocks));
}

// False, and nothing changed, where there is no place, no room or no budget for it.
bool StepLoop::admit(Sample& sample, StepBudget& budget) {
  schedule::Sequence& sequence = sample.sequence;
  if (running_slots() + sequence.slots > limits_.max_num_seqs) return false;
  if (!make_room_for(sample, budget)) {
    without_room_ = sequence.tenant;
    if (running_.empty()) fail_if_pinned_out(sample);
    return false;
  }
  if (load(sample)) return true;
  const StepDemand demand = demand_of(sample);
  const schedule::StepGrant grant = budget.take(demand);
  if (grant.num_rows == 0) {
    kv_cache_->release(sequence.kv);
    return false;
  }
  running_.reserve(running_.size() + 1);
  entries_.reserve(entries_.size() + 1);
  enter(sample, grant, demand);
  entries_.back().decoding = false;
  leave_queue(sample);
  start_running(sample);
  if (!sample.request.scheduled) count_start(sample.request, sequence.num_computed());
  metrics_.reused_tokens += static_cast<uint64_t>(sequence.num_computed());
  return true;
}

// It goes before those that stand ahead of it in its tenant's line.
void StepLoop::leave_queue(Sample& sample) {
  for (schedule::Sequence* earlier : *queue_.line(sample.sequence.tenant)) {
    if (earlier == &sample.sequence) break;
    ++earlier->num_overtakes;
  }
  dequeue(sample);
}

// A sequence with room for all its tokens: whether blocks behind those found in the pool are read from beyond it. Then it holds a place until they
// are there, and nobody waits for it.
bool StepLoop::load(Sample& sample) {
  schedule::Sequence& sequence = sample.sequence;
  loading_.reserve(loading_.size() + 1);
  const int64_t found = sequence.num_computed();
  const auto is_worth = [&](int64_t end, double ns) {
    const bool worth = policy_.load == schedule::LoadChoice::kAlways ||
                       ns <= cost_.added_ns(schedule::StepWork::of(found, end - found));
    if (!worth) ++metrics_.forgone_loads;
    return worth;
  };
  if (policy_.load == schedule::LoadChoice::kNever) return false;
  const int64_t end = kv_cache_->begin_fetch(sequence.kv, sequence.token_ids, sequence.num_reusable(), is_worth);
  if (end == found) return false;
  leave_queue(sample);
  loading_.push_back(&sample);
  sequence.state = SequenceState::kLoading;
  trace(sample, "loading", "tokens", end - found);
  ++sample.request.tenant->metrics.num_running;
  sample.request.tenant->changed = true;
  return true;
}

// Sequences whose values are there run from this step on.
void StepLoop::take_loaded() {
  running_.reserve(running_.size() + loading_.size());
  const std::vector<Sample*> loading = loading_;
  for (Sample* sample : loading) {
    schedule::Sequence& sequence = sample->sequence;
    if (!kv_cache_->fetch_done(sequence.kv)) continue;
    const int64_t found = sequence.num_computed();
    const int64_t stored = kv_cache_->end_fetch(sequence.kv, sequence.token_ids);
    metrics_.disk_tokens += static_cast<uint64_t>(stored - found);
    metrics_.reused_tokens += static_cast<uint64_t>(stored);
    trace(*sample, "loaded", "tokens", stored - found);
    const int64_t reusable = sequence.num_reusable();
    if (!sample->request.scheduled) {
      if (reusable - stored < kv_cache_->block_size()) {
        sample->request.reuse_miss = reuse_miss_of(sequence, reusable, PrefixMiss::kNone);
      }
      count_start(sample->request, stored);
    }
    stop_running(*sample);
    start_running(*sample);
  }
}

}  // namespace headrace::engine
