// Runs requests: many share one step, and each gets exactly one terminal event.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/event.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "schedule/metrics.h"
#include "schedule/tenant.h"
#include "speculation/drafter.h"
#include "speculation/speculation_counts.h"

namespace headrace::engine {

struct SchedulerStats {
  int64_t num_waiting = 0;  // sequences queued or preempted
  int64_t num_running = 0;  // sequences
  uint64_t num_steps = 0;   // forward passes
  uint64_t prefill_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t finished_requests = 0;
};

// Everything a scheduler counts, as of the end of its last step.
struct SchedulerReport {
  schedule::SchedulerMetrics metrics;
  speculation::SpeculationCounts speculation;
  KvCacheStats kv;
  int64_t step_age_ns = -1;  // since the last step ended; -1: there was none
  int64_t num_tenants = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t max_num_seqs = 0;
};

struct TenantReport {
  schedule::TenantLimits limits;
  schedule::TenantMetrics metrics;
};

// One step is plan (which rows of which sequences), reserve (cache blocks; the latest and least important sequences
// give theirs up when the pool is full, and compute them again later), run, and commit or roll back.
// Thread rule: everything but step and check_invariants from any thread, also while another thread steps.
class Scheduler {
 public:
  // kv_cache null: one of its own, made with the options. drafters: beside "ngram" and "suffix", which every scheduler has;
  // requests and options call them by their names.
  static Result<std::shared_ptr<Scheduler>> create(std::shared_ptr<const EngineModel> model,
                                                   std::shared_ptr<KvCache> kv_cache, const EngineOptions& options,
                                                   std::vector<std::shared_ptr<speculation::Drafter>> drafters = {});
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  const std::shared_ptr<const EngineModel>& model() const;
  const std::shared_ptr<KvCache>& kv_cache() const;

  // Checks the whole request and queues it; gives its id, from 1. kInvalidArgument and kResourceExhausted name the field;
  // kResourceExhausted with the place "prompt" gives the counts, with "scheduler.max_queue" says the queue is full.
  Result<uint64_t> submit(RequestParams params);
  // The request ends at the next step at the latest. kNotFound for an id that has ended or never was.
  Status cancel(uint64_t request_id);
  // Runs one step; true while requests are queued or running. A second caller at the same time gets
  // kFailedPrecondition. The calling thread must hold a shared_ptr to the scheduler.
  Result<bool> step();
  // Called at the end of each step for each event, on the stepping thread and without a lock, in the order of next_event, which
  // then gives none. Another step meanwhile gets kFailedPrecondition. False: not now; it and those of its request behind it come
  // again after the next step, and more than scheduler.max_events of them keep the request waiting. Null: events are to be taken
  // again.
  using EventCallback = std::function<bool(const std::shared_ptr<const Event>&)>;
  void set_event_callback(EventCallback callback);
  // Steps until stop or shut_down, and waits where there is nothing to do. As step, of one thread at a time; fails as step does.
  Status run();
  // Ends the run that goes on, or the next one. [any thread]
  void stop();
  // The next event, or null.
  std::shared_ptr<const Event> next_event();
  // The next one of that request; those of others stay.
  std::shared_ptr<const Event> next_event_of(uint64_t request_id);
  // The same, waited for: this thread steps where no other one does (run, step, or another wait). kNotFound where none comes any
  // more; kFailedPrecondition with an event callback; fails as step does. The calling thread must hold a shared_ptr.
  Result<std::shared_ptr<const Event>> wait(uint64_t request_id);
  SchedulerStats stats() const;
  SchedulerReport report() const;
  // Names of the tenants known, ascending.
  std::vector<std::string> tenants() const;
  // kNotFound for a tenant that is not known.
  Result<TenantReport> tenant(const std::string& name) const;
  // Holds from the next submit and step on. kInvalidArgument with the limit's name as place; kResourceExhausted with
  // "scheduler.max_tenants" where no more tenants are kept.
  Status set_tenant(const std::string& name, const schedule::TenantLimits& limits);
  // Ends everything and gives all blocks and sessions back: now, or at the end of the step in flight. Never waits.
  // Afterwards submit and step give kFailedPrecondition.
  void shut_down();

  // The laws of the books and of the pool, as debug builds check them after every step; kFailedPrecondition during one.
  Status check_invariants();

 private:
  class Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::engine
