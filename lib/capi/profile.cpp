// What a model's ops took, as JSON: sums, and trace events.
#include "ops/op_profile.h"

#include <optional>
#include <set>
#include <string>

#include "capi/guard.h"
#include "capi/handles.h"
#include "formats/json_writer.h"
#include "tensor/dtype.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

Result<const OpProfile*> profile_of(const headrace_model* model) {
  if (model == nullptr) return null_argument("model");
  const OpProfile* profile = model->loaded->backend->profile();
  if (profile == nullptr) return failed_precondition("engine.profile", "was off when the model was loaded");
  return profile;
}

const char* arithmetic_name(ActivationType type) {
  switch (type) {
    case ActivationType::kInt8: return "int8";
    case ActivationType::kInt16: return "int16";
    case ActivationType::kFloat32: break;
  }
  return "float32";
}

bool has_type(uint64_t weight_types, int32_t type) { return (weight_types >> type & 1) != 0; }

bool is_span(ProfiledOp op) { return op >= ProfiledOp::kSample; }

std::string describe_sums(const OpProfile& profile) {
  const std::vector<OpProfile::Sum> sums = profile.sums();
  JsonWriter out;
  const auto write = [&](const OpProfile::Sum& sum) {
    out.begin_object();
    out.member(is_span(sum.op) ? "span" : "op", profiled_op_name(sum.op));
    if (!is_span(sum.op)) {
      out.key("weights");
      out.begin_array();
      for (int32_t type = 0; type < static_cast<int32_t>(DType::kCount); ++type) {
        if (has_type(sum.weight_types, type)) out.value(dtype_name(static_cast<DType>(type)));
      }
      out.end_array();
      out.member("arithmetic", arithmetic_name(sum.arithmetic));
      out.member("bytes", sum.bytes);
      out.member("multiply_adds", sum.multiply_adds);
    }
    out.member("calls", sum.calls);
    out.member("rows", sum.rows);
    out.member("nanoseconds", sum.nanoseconds);
    out.end_object();
  };
  out.begin_object();
  for (const bool spans : {false, true}) {
    out.key(spans ? "spans" : "ops");
    out.begin_array();
    for (const OpProfile::Sum& sum : sums) {
      if (is_span(sum.op) == spans) write(sum);
    }
    out.end_array();
  }
  out.end_object();
  return out.take();
}

constexpr int kProcess = 1;  // a trace has one

// What viewers call the process (without a thread) and its threads.
void write_name(JsonWriter& out, std::optional<int32_t> thread, const std::string& name) {
  out.begin_object();
  out.member("name", thread ? "thread_name" : "process_name");
  out.member("ph", "M");
  out.member("pid", kProcess);
  if (thread) out.member("tid", *thread);
  out.key("args");
  out.begin_object();
  out.member("name", name);
  out.end_object();
  out.end_object();
}

void write_event(JsonWriter& out, const OpProfile::TraceEvent& event) {
  const ProfiledCall& call = event.call;
  std::string name(profiled_op_name(call.op));
  for (int32_t type = 0; type < static_cast<int32_t>(DType::kCount); ++type) {
    if (has_type(call.weight_types, type)) name.append(" ").append(dtype_name(static_cast<DType>(type)));
  }
  out.begin_object();
  out.member("name", name);
  out.member("cat", is_span(call.op) ? "span" : "op");
  out.member("ph", "X");  // a span with its duration, in microseconds
  out.member("ts", static_cast<double>(event.begin_ns) / 1e3);
  out.member("dur", static_cast<double>(event.end_ns - event.begin_ns) / 1e3);
  out.member("pid", kProcess);
  out.member("tid", event.thread);
  out.key("args");
  out.begin_object();
  const auto number = [&](const char* key, auto value) {
    if (value != 0) out.member(key, value);
  };
  number("rows", call.rows);
  number("sequences", call.sequences);
  number("in_features", call.in_features);
  number("out_features", call.out_features);
  number("bytes", call.bytes);
  number("multiply_adds", call.multiply_adds);
  out.end_object();
  out.end_object();
}

// Viewers show the marks of one id as a track of its own.
void write_mark(JsonWriter& out, const TraceMark& mark) {
  constexpr const char* kPhases[] = {"b", "n", "e"};
  out.begin_object();
  out.member("name", mark.name);
  out.member("cat", "request");
  out.member("ph", kPhases[static_cast<int32_t>(mark.kind)]);
  out.member("ts", static_cast<double>(mark.ns) / 1e3);
  out.member("pid", kProcess);
  out.member("tid", 0);
  out.member("id", fmt::format("{}.{}", mark.group, mark.id));
  out.key("args");
  out.begin_object();
  if (mark.kind == TraceMark::Kind::kPoint) out.member("index", mark.part);
  if (!mark.value_name.empty()) out.member(mark.value_name, mark.value);
  if (!mark.detail.empty()) out.member("reason", mark.detail);
  out.end_object();
  out.end_object();
}

std::string describe_events(const OpProfile& profile) {
  const OpProfile::Trace trace = profile.trace();
  JsonWriter out;
  out.begin_object();
  out.key("traceEvents");
  out.begin_array();
  write_name(out, {}, "headrace");
  std::set<int32_t> threads;
  for (const OpProfile::TraceEvent& event : trace.events) threads.insert(event.thread);
  for (const int32_t thread : threads) write_name(out, thread, fmt::format("calling thread {}", thread));
  for (const OpProfile::TraceEvent& event : trace.events) write_event(out, event);
  for (const TraceMark& mark : trace.marks) write_mark(out, mark);
  out.end_array();
  out.member("displayTimeUnit", "ms");
  out.key("otherData");
  out.begin_object();
  out.member("dropped_events", trace.dropped);
  out.end_object();
  out.end_object();
  return out.take();
}

}  // namespace

extern "C" {

headrace_status headrace_model_describe_profile(const headrace_model* model, char* buffer, size_t capacity,
                                                size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const OpProfile* profile, profile_of(model));
    return copy_text(describe_sums(*profile), buffer, capacity, needed);
  });
}

headrace_status headrace_model_describe_trace(const headrace_model* model, char* buffer, size_t capacity,
                                              size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const OpProfile* profile, profile_of(model));
    if (!profile->with_trace()) {
      return failed_precondition("engine.profile", "was not \"trace\" when the model was loaded");
    }
    return copy_text(describe_events(*profile), buffer, capacity, needed);
  });
}

}  // extern "C"
