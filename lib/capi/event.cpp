#include "engine/event.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kUsageSize1 = offsetof(headrace_usage, total_ns) + sizeof(int64_t);
constexpr size_t kHiddenStatesSize1 = offsetof(headrace_hidden_states, hidden_size) + sizeof(int64_t);

constexpr size_t kProgressSize1 = offsetof(headrace_prompt_progress, computed) + sizeof(int64_t);

}  // namespace

extern "C" {

headrace_status headrace_event_next(headrace_scheduler* scheduler, headrace_event** event, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (event == nullptr) return null_argument("event");
    auto handle = std::make_unique<headrace_event>();  // before an event is taken, so that none is lost
    handle->event = scheduler->scheduler->next_event();
    *event = handle->event ? handle.release() : nullptr;
    return Status();
  });
}

headrace_status headrace_event_next_of(headrace_scheduler* scheduler, uint64_t request_id, headrace_event** event,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (event == nullptr) return null_argument("event");
    auto handle = std::make_unique<headrace_event>();  // before an event is taken, so that none is lost
    handle->event = scheduler->scheduler->next_event_of(request_id);
    *event = handle->event ? handle.release() : nullptr;
    return Status();
  });
}

headrace_status headrace_event_wait(headrace_scheduler* scheduler, uint64_t request_id, headrace_event** event,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    if (event == nullptr) return null_argument("event");
    auto handle = std::make_unique<headrace_event>();  // before an event is taken, so that none is lost
    const auto kept = scheduler->scheduler;            // it may be destroyed meanwhile
    HEADRACE_ASSIGN_OR_RETURN(handle->event, kept->wait(request_id));
    *event = handle.release();
    return Status();
  });
}

void headrace_event_destroy(headrace_event* event) { delete event; }

int32_t headrace_event_get_type(const headrace_event* event) {
  return event == nullptr ? 0 : static_cast<int32_t>(event->event->type);
}

uint64_t headrace_event_get_request_id(const headrace_event* event) {
  return event == nullptr ? 0 : event->event->request_id;
}

uint32_t headrace_event_get_index(const headrace_event* event) { return event == nullptr ? 0 : event->event->index; }

int32_t headrace_event_get_is_last(const headrace_event* event) {
  return event != nullptr && event->event->is_last ? 1 : 0;
}

const char* headrace_event_get_text(const headrace_event* event, size_t* text_size) {
  if (text_size != nullptr) *text_size = event == nullptr ? 0 : event->event->text.size();
  return event == nullptr ? "" : event->event->text.c_str();
}

const int32_t* headrace_event_get_tokens(const headrace_event* event, size_t* num_tokens) {
  const size_t count = event == nullptr ? 0 : event->event->tokens.size();
  if (num_tokens != nullptr) *num_tokens = count;
  return count == 0 ? nullptr : event->event->tokens.data();
}

const float* headrace_event_get_logprobs(const headrace_event* event, size_t* num_tokens) {
  const size_t count = event == nullptr ? 0 : event->event->logprobs.size();
  if (num_tokens != nullptr) *num_tokens = count;
  return count == 0 ? nullptr : event->event->logprobs.data();
}

headrace_status headrace_event_get_top_logprobs(const headrace_event* event, size_t token, const int32_t** token_ids,
                                                const float** logprobs, size_t* count, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    if (token_ids == nullptr) return null_argument("token_ids");
    if (logprobs == nullptr) return null_argument("logprobs");
    if (count == nullptr) return null_argument("count");
    if (token >= event->event->tokens.size()) return not_found("token", "the event has no token {}", token);
    *token_ids = nullptr;
    *logprobs = nullptr;
    *count = 0;
    if (token >= event->event->top_logprobs.size()) return Status();  // none were asked for
    const engine::TopLogprobs& top = event->event->top_logprobs[token];
    *token_ids = top.token_ids.data();
    *logprobs = top.logprobs.data();
    *count = top.token_ids.size();
    return Status();
  });
}

const char* headrace_event_get_finish_reason(const headrace_event* event) {
  return engine::finish_reason_name(event == nullptr ? engine::FinishReason::kNone : event->event->finish_reason);
}

const char* headrace_event_get_reuse_miss(const headrace_event* event) {
  const bool finished = event != nullptr && event->event->type == engine::EventType::kFinished;
  return engine::reuse_miss_name(finished ? event->event->usage.reuse_miss : engine::ReuseMiss::kNone);
}

void headrace_hidden_states_init(headrace_hidden_states* hidden_states) { init_struct(hidden_states); }

headrace_status headrace_event_get_hidden_states(const headrace_event* event, headrace_hidden_states* hidden_states,
                                                 headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    if (!event->event->hidden) return failed_precondition("event", "carries no hidden states");
    const engine::HiddenStates& rows = *event->event->hidden;
    headrace_hidden_states values = {};
    values.num_layers = static_cast<uint32_t>(rows.layers.size());
    values.values = rows.values.data();
    values.layers = rows.layers.data();
    values.first_position = rows.first_position;
    values.num_rows = rows.num_rows;
    values.hidden_size = rows.hidden_size;
    return write_struct("hidden_states", values, hidden_states, kHiddenStatesSize1);
  });
}

headrace_status headrace_event_get_status(const headrace_event* event) {
  return event == nullptr ? HEADRACE_OK : static_cast<headrace_status>(event->event->status.code());
}

const char* headrace_event_get_message(const headrace_event* event) {
  return event == nullptr ? "" : event->event->status.message().c_str();
}

const char* headrace_event_get_place(const headrace_event* event) {
  return event == nullptr ? "" : event->event->status.place().c_str();
}

void headrace_usage_init(headrace_usage* usage) { init_struct(usage); }

headrace_status headrace_event_get_usage(const headrace_event* event, headrace_usage* usage, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    if (event->event->type != engine::EventType::kFinished) {
      return failed_precondition("event", "only finished events carry usage");
    }
    const engine::Usage& now = event->event->usage;
    headrace_usage values = {};
    values.prompt_tokens = now.prompt_tokens;
    values.cached_tokens = now.cached_tokens;
    values.output_tokens = now.output_tokens;
    values.queue_ns = now.queue_ns;
    values.first_token_ns = now.first_token_ns;
    values.total_ns = now.total_ns;
    return write_struct("usage", values, usage, kUsageSize1);
  });
}

void headrace_prompt_progress_init(headrace_prompt_progress* progress) { init_struct(progress); }

headrace_status headrace_event_get_progress(const headrace_event* event, headrace_prompt_progress* progress,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    if (event->event->type != engine::EventType::kProgress) {
      return failed_precondition("event", "is not of the type HEADRACE_EVENT_PROGRESS");
    }
    headrace_prompt_progress values = {};
    values.total = event->event->progress.total;
    values.cached = event->event->progress.cached;
    values.computed = event->event->progress.computed;
    return write_struct("progress", values, progress, kProgressSize1);
  });
}

}  // extern "C"
