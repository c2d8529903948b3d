// The step: plan, reserve, run, commit or roll back. Knows nothing of threads.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/event.h"
#include "engine/executor.h"
#include "engine/live_request.h"
#include "engine/scheduler.h"
#include "schedule/cost_model.h"
#include "schedule/fair_share.h"
#include "schedule/policy.h"
#include "schedule/request_queue.h"
#include "schedule/step_plan.h"
#include "speculation/acceptance.h"
#include "speculation/speculator.h"
#include "speculation/verify_paths.h"

namespace headrace::engine {

struct GuessPolicy {
  int32_t max_guesses = 32;  // of one sequence in a step
  bool always = false;       // verify them whether they pay or not
};

// One thread at a time.
class StepLoop {
 public:
  StepLoop(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache, schedule::StepLimits limits,
           const schedule::SchedulePolicy& policy, std::vector<std::shared_ptr<speculation::Drafter>> drafters,
           const GuessPolicy& guess_policy);
  ~StepLoop();

  // May be called again with the same request after it threw.
  void accept(const std::shared_ptr<LiveRequest>& request);
  // Ends what was cancelled or is late, then runs one forward pass if there is anything to run.
  void step();
  // Ends every request without an event; blocks and sessions are given back.
  void tear_down();
  // The same for a request that no loop accepted.
  static void abandon(LiveRequest& request);

  // Events not handed on yet, in order.
  std::list<std::shared_ptr<const Event>>& events() { return events_; }
  const schedule::SchedulerMetrics& metrics() const { return metrics_; }
  // Its names and parse() from any thread.
  const speculation::Speculator& speculator() const { return speculator_; }
  // Requests accepted and never scheduled.
  int64_t num_unscheduled() const { return num_unscheduled_; }
  // Whether nothing runs and all that waits does so for its tenant's tokens_per_second.
  bool held_back() const;
  // Waits a moment where nothing runs and values are on their way from disk.
  void wait_for_disk() const;
  // The laws of the books and of the pool.
  Status check_invariants() const;

 private:
  // Rows that follow each other from the entry's start on: the sequence's own, or those of another path of its guesses.
  struct EntryPath {
    schedule::StepGrant grant;
    std::vector<int32_t> guesses;          // nodes of the entry's guesses, behind the sequence's tokens
    int32_t num_shared = 0;                // of them, whose logits an earlier path has, as that of the row before them
    KvSequence kv;                         // of another path: the sequence's values so far, and room behind
    size_t first_logits = 0;               // index of its first row of logits
    float* row_states = nullptr;           // recurrent states after each row but the last; null: none are kept
    std::shared_ptr<HiddenStates> hidden;  // that are owed of its rows, or null
    std::vector<std::vector<float>> features;  // for each drafter that reads some: [layers, rows, hidden_size]
  };
  // A sequence's part of the step.
  struct Entry {
    Sample* sample = nullptr;
    int64_t start = 0;  // position of its first row
    bool decoding = false;
    speculation::DraftTree guesses;  // at the tokens behind
    int32_t num_verified = 0;        // of them, the first: rows of this step
    std::vector<EntryPath> paths;    // the sequence's own first
    EntryPath& own() { return paths.front(); }
    const EntryPath& own() const { return paths.front(); }
    int64_t end() const { return start + own().grant.num_rows; }
  };
  // What prompts may add to a step, for which decoding sequences wait.
  struct PromptTime {
    double ns = std::numeric_limits<double>::infinity();
    double behind_ns = std::numeric_limits<double>::infinity();  // those of a tenant that is behind
    int64_t slots = 0;                                           // of the sequences that run
    double weights = 0.0;                                        // of all tenants
    // Whether the tenant, with a prompt that runs already or one more that waits, has no more than its part of those: its prompt
    // waits for the others' decoding.
    bool behind(const schedule::Tenant& tenant, bool waits) const {
      const auto own = static_cast<double>(tenant.metrics.num_running + (waits ? 1 : 0));
      return weights > tenant.limits.weight && own * weights <= static_cast<double>(slots) * tenant.limits.weight;
    }
  };

  void reap();
  // step_loop_plan.cpp
  void plan();
  PromptTime prompt_time(const std::vector<Sample*>& prompts, const schedule::StepBudget& budget) const;
  void plan_prompts(std::vector<Sample*>& prompts, schedule::StepBudget& budget);
  bool may_begin(const schedule::Tenant& tenant) const;
  bool within_limit(const schedule::Tenant& tenant, int64_t more) const;
  Sample* candidate(const schedule::Tenant& tenant);
  bool waits_for_prefix(Sample& sample);
  void fail_if_pinned_out(Sample& sample);
  int64_t cached_prefix(const Sample& sample) const;
  bool load(Sample& sample);
  void take_loaded();
  bool shed_loading();
  bool gives_way_before(const Sample& a, const Sample& b) const;
  void make_way();
  void grant_rows(Sample& sample, schedule::StepBudget& budget);
  void enter(Sample& sample, const schedule::StepGrant& grant, const schedule::StepDemand& demand);
  bool reserve(Sample& sample, int64_t end, schedule::StepBudget& budget);
  bool admit(Sample& sample, schedule::StepBudget& budget);
  bool make_room_for(Sample& sample, schedule::StepBudget& budget);
  ReuseMiss reuse_miss_of(const schedule::Sequence& sequence, int64_t reusable, PrefixMiss miss) const;
  bool shed_waiting(const Sample& keep);
  void start_over(Sample& sample);
  void preempt(Sample& sample);
  void start_over_if_outgrown(Sample& sample);
  void mark_scheduled(LiveRequest& request);
  void enqueue(Sample& sample);
  void leave_queue(Sample& sample);
  void dequeue(Sample& sample);
  void start_running(Sample& sample);
  void stop_running(Sample& sample);  // or loading

  // step_loop_trace.cpp
  void trace(const LiveRequest& request, uint32_t index, TraceMark mark) const;
  void trace(const Sample& sample, std::string_view name, std::string_view value_name = {}, int64_t value = 0) const;
  void trace_begin(const LiveRequest& request) const;
  void trace_end(const LiveRequest& request) const;

  // step_loop_speculation.cpp
  speculation::DraftContext draft_context(const Sample& sample) const;
  int64_t most_guesses(const Sample& sample) const;
  void add_guesses(schedule::StepBudget& budget);
  void grow(Entry& entry, int64_t most_states, schedule::StepBudget& budget);
  bool grow_own(Entry& entry, const speculation::VerifyPath& path, schedule::StepBudget& budget);
  bool grow_branch(Entry& entry, const speculation::VerifyPath& path, schedule::StepBudget& budget);
  static void number_guesses(Entry& entry);
  bool shed_branches(schedule::StepBudget& budget);
  int64_t max_row_states() const;
  void keep_states();
  void verify(Entry& entry);
  void observe(const Entry& entry, const EntryPath& path, int64_t end);

  Status encode_images(const Entry& entry);
  Status read_input(LiveRequest& request);
  void run_encoders();
  void build_batch();
  void add_rows(Entry& entry, EntryPath& path);
  void tap_hidden(const Entry& entry, EntryPath& path);
  void tap_features(const Entry& entry, EntryPath& path);
  void run_batch();
  void learn_cost(int64_t ns);
  void commit(Entry& entry);
  static Status check_logits(std::span<const float> rows, std::span<const LogitStats> stats, int64_t position);
  Status score_prompt(const Entry& entry);
  void emit_hidden(const Entry& entry, const EntryPath& path, int64_t end);
  void draw_first(Sample& root, std::span<float> row, const LogitStats& stats);
  bool draw(Sample& sample, std::span<float> row, const LogitStats& stats);
  Result<SampledToken> draw_token(Sample& sample, std::span<float> row, const LogitStats& stats,
                                  std::span<const speculation::Guess> guesses);
  FinishReason take_token(Sample& sample, const SampledToken& token);
  void conclude(Sample& sample, FinishReason reason);

  void emit(Event event, const LiveRequest& request, uint32_t index);
  void emit_text(Sample& sample);
  void emit_prompt(LiveRequest& request);
  void emit_progress(LiveRequest& request, int64_t computed);
  void finish(LiveRequest& request, uint32_t index, FinishReason reason);
  void finish_open(LiveRequest& request, FinishReason reason);
  void fail(LiveRequest& request, Status status);
  void let_go(Sample& sample, schedule::SequenceState state, bool keep_output);
  void forget_if_ended(LiveRequest& request);
  void count_start(LiveRequest& request, int64_t cached_tokens);
  void count_token(Sample& sample, bool first);
  void count_end(FinishReason reason);
  void recover(const Status& status);

  std::unique_ptr<Sample> make_sample(LiveRequest& request, uint32_t index) const;
  static schedule::StepDemand demand_of(const Sample& sample);
  int64_t running_slots() const;
  Sample& sample_of(const schedule::Sequence& sequence) const;

  const std::shared_ptr<const EngineModel> model_;
  const std::shared_ptr<KvCache> kv_cache_;
  const schedule::StepLimits limits_;
  const schedule::SchedulePolicy policy_;
  const int64_t context_limit_;
  OpProfile* const trace_;  // null: nobody traces
  const uint64_t trace_group_;

  std::map<uint64_t, std::shared_ptr<LiveRequest>> requests_;  // that have not ended
  schedule::RequestQueue queue_;
  schedule::FairShare fair_;
  schedule::CostModel cost_;
  speculation::Speculator speculator_;
  const int32_t max_guesses_;        // of one sequence in a step
  speculation::StepCost step_cost_;  // of the step being made
  std::vector<float> row_states_;    // of its entries
  std::vector<uint32_t> mask_words_;
  const schedule::Tenant* without_room_ = nullptr;  // whose first request found none in the last step; only compared
  bool short_of_room_ = false;                      // in the step being made
  std::vector<Sample*> running_;
  std::vector<Sample*> loading_;
  std::vector<Entry> entries_;  // of the step being made
  Batch batch_;
  std::vector<float> logits_;
  std::vector<LogitStats> logit_stats_;  // of the rows of logits_
  std::vector<float> row_;
  std::list<std::shared_ptr<const Event>> events_;
  uint64_t num_events_ = 0;                          // made so far
  std::vector<std::shared_ptr<LiveRequest>> ended_;  // in this step; references to them are still around
  int64_t num_unscheduled_ = 0;
  schedule::SchedulerMetrics metrics_;
};

}  // namespace headrace::engine
