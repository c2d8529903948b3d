#include "engine/scheduler.h"

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/host_user.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kStatsSize1 = offsetof(headrace_scheduler_stats, finished_requests) + sizeof(uint64_t);

}  // namespace

extern "C" {

headrace_status headrace_scheduler_create(const headrace_model* model, headrace_kv_cache* kv_cache,
                                          const headrace_options* options, headrace_scheduler** scheduler,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (scheduler == nullptr) return null_argument("scheduler");
    HEADRACE_ASSIGN_OR_RETURN(auto created,
                              engine::Scheduler::create(model->loaded->engine, kv_cache ? kv_cache->cache : nullptr,
                                                        options_or_default(options)));
    *scheduler = new headrace_scheduler{model->loaded, std::move(created)};
    return Status();
  });
}

void headrace_scheduler_destroy(headrace_scheduler* scheduler) {
  if (scheduler == nullptr) return;
  guarded(nullptr, [&]() -> Status {
    scheduler->scheduler->shut_down();
    return Status();
  });
  delete scheduler;
}

headrace_status headrace_scheduler_submit(headrace_scheduler* scheduler, const headrace_request* request,
                                          uint64_t* request_id, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (request == nullptr) return null_argument("request");
    if (request_id == nullptr) return null_argument("request_id");
    if (request->loaded != scheduler->loaded) return failed_precondition("request", "was made for another model");
    HEADRACE_ASSIGN_OR_RETURN(*request_id, scheduler->scheduler->submit(request->params));
    return Status();
  });
}

headrace_status headrace_scheduler_cancel(headrace_scheduler* scheduler, uint64_t request_id, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    return scheduler->scheduler->cancel(request_id);
  });
}

headrace_status headrace_scheduler_step(headrace_scheduler* scheduler, int32_t* has_work, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (has_work == nullptr) return null_argument("has_work");
    // Held through the step, so that a destroy on another thread leaves it whole until its end.
    const std::shared_ptr<engine::Scheduler> stepping = scheduler->scheduler;
    HEADRACE_ASSIGN_OR_RETURN(const bool working, stepping->step());
    *has_work = working ? 1 : 0;
    return Status();
  });
}

headrace_status headrace_scheduler_set_event_callback(headrace_scheduler* scheduler, headrace_event_callback callback,
                                                      void* user, headrace_release_callback release,
                                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (callback == nullptr) {
      scheduler->scheduler->set_event_callback(nullptr);
      if (release != nullptr) release(user);
      return Status();
    }
    const auto host = std::make_shared<HostUser>(user);
    scheduler->scheduler->set_event_callback([host, callback](const std::shared_ptr<const engine::Event>& event) {
      return callback(host->get(), new headrace_event{event}) != 0;
    });
    host->release_at_end(release);
    return Status();
  });
}

headrace_status headrace_scheduler_run(headrace_scheduler* scheduler, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    const std::shared_ptr<engine::Scheduler> running = scheduler->scheduler;  // as in step
    return running->run();
  });
}

headrace_status headrace_scheduler_stop(headrace_scheduler* scheduler, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    scheduler->scheduler->stop();
    return Status();
  });
}

void headrace_scheduler_stats_init(headrace_scheduler_stats* stats) { init_struct(stats); }

headrace_status headrace_scheduler_get_stats(const headrace_scheduler* scheduler, headrace_scheduler_stats* stats,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    const engine::SchedulerStats now = scheduler->scheduler->stats();
    headrace_scheduler_stats values = {};
    values.num_waiting = now.num_waiting;
    values.num_running = now.num_running;
    values.num_steps = now.num_steps;
    values.prefill_tokens = now.prefill_tokens;
    values.cached_tokens = now.cached_tokens;
    values.decode_tokens = now.decode_tokens;
    values.preemptions = now.preemptions;
    values.finished_requests = now.finished_requests;
    return write_struct("stats", values, stats, kStatsSize1);
  });
}

}  // extern "C"
