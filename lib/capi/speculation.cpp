#include "capi/guard.h"
#include "capi/handles.h"
#include "engine/scheduler.h"
#include "formats/json_writer.h"

using namespace headrace;
using namespace headrace::capi;
using speculation::DrafterCounts;
using speculation::SpeculationCounts;

namespace {

// Up to the greatest depth that was drafted.
void write_depths(JsonWriter& out, std::string_view name, const DrafterCounts& counts,
                  const std::array<uint64_t, speculation::kCountedDepths>& values) {
  size_t size = values.size();
  while (size > 0 && counts.drafted_at[size - 1] == 0) --size;
  out.list(name, std::span(values).first(size));
}

void write_counts(JsonWriter& out, const SpeculationCounts& counts) {
  out.member("steps", counts.steps);
  out.member("drafted", counts.drafted());
  out.member("accepted", counts.accepted());
  out.member("saved_ns", static_cast<int64_t>(counts.saved_ns));
  out.key("drafters");
  out.begin_array();
  for (const DrafterCounts& drafter : counts.drafters) {
    if (drafter.name.empty()) continue;  // the request did not ask for it
    out.begin_object();
    out.member("name", drafter.name);
    out.member("drafted", drafter.drafted);
    out.member("accepted", drafter.accepted);
    out.member("draft_ns", drafter.draft_ns);
    write_depths(out, "drafted_at", drafter, drafter.drafted_at);
    write_depths(out, "accepted_at", drafter, drafter.accepted_at);
    out.end_object();
  }
  out.end_array();
}

}  // namespace

extern "C" {

headrace_status headrace_request_set_drafter(headrace_request* request, const char* drafter, size_t drafter_size,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view names, text_argument("drafter", drafter, drafter_size));
    request->params.drafter = std::string(names);
    return Status();
  });
}

headrace_status headrace_event_describe_speculation(const headrace_event* event, char* buffer, size_t capacity,
                                                    size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (event == nullptr) return null_argument("event");
    if (event->event->type != engine::EventType::kFinished) {
      return failed_precondition("event", "only finished events tell of speculation");
    }
    const SpeculationCounts& counts = event->event->usage.speculation;
    JsonWriter out;
    out.begin_object();
    out.member("state", speculation::draft_state_name(counts.state));
    out.member("chains_because", counts.chains_for_state ? "recurrent_state" : "");
    write_counts(out, counts);
    out.end_object();
    return copy_text(out.take(), buffer, capacity, needed);
  });
}

headrace_status headrace_scheduler_describe_speculation(const headrace_scheduler* scheduler, char* buffer,
                                                        size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    JsonWriter out;
    out.begin_object();
    write_counts(out, scheduler->scheduler->report().speculation);
    out.end_object();
    return copy_text(out.take(), buffer, capacity, needed);
  });
}

}  // extern "C"
