// What becomes of requests, for traces: numbers and names of states alone, never what a text or token is.
#include "engine/step_loop.h"

namespace headrace::engine {

void StepLoop::trace(const LiveRequest& request, uint32_t index, TraceMark mark) const {
  if (trace_ == nullptr) return;
  mark.group = trace_group_;
  mark.id = request.id;
  mark.part = index;
  if (mark.ns == 0) mark.ns = trace_->now_ns();
  trace_->mark(mark);
}

void StepLoop::trace(const Sample& sample, std::string_view name, std::string_view value_name, int64_t value) const {
  trace(sample.request, sample.index, {.name = name, .value_name = value_name, .value = value});
}

// From its submit on, which was before the step that saw it first.
void StepLoop::trace_begin(const LiveRequest& request) const {
  if (trace_ == nullptr) return;
  TraceMark mark{TraceMark::Kind::kBegin, "request", "prompt_tokens"};
  mark.value = static_cast<int64_t>(request.prompt.size());
  mark.ns = std::max<int64_t>(trace_->now_ns() - request.since_submit_ns(), 1);
  trace(request, 0, mark);
}

void StepLoop::trace_end(const LiveRequest& request) const { trace(request, 0, {TraceMark::Kind::kEnd, "request"}); }

}  // namespace headrace::engine
