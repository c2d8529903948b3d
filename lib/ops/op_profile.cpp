#include "ops/op_profile.h"

#include <unistd.h>

#include <algorithm>

namespace headrace {

std::string_view profiled_op_name(ProfiledOp op) {
  constexpr std::string_view kNames[] = {
      "embed",       "norm",      "linear",  "rope_store",  "attention",  "select_positions",
      "activation",  "add",       "scale",   "softcap",     "route",      "experts",
      "head_linear", "gate_rows", "streams", "causal_conv", "recurrence", "decay_gates",
      "logit_stats", "sample",    "forward", "step"};
  return kNames[static_cast<size_t>(op)];
}

OpProfile::OpProfile(bool with_trace) : with_trace_(with_trace) {
  if (!with_trace) return;
  events_.reserve(kTraceEvents);
  marks_.reserve(kTraceMarks);
}

void OpProfile::record(const ProfiledCall& call, int64_t begin_ns, int64_t end_ns) {
  const std::lock_guard lock(mutex_);
  const auto end = sums_.begin() + static_cast<ptrdiff_t>(num_sums_);
  auto sum = std::find_if(sums_.begin(), end, [&](const Sum& each) {
    return each.op == call.op && each.arithmetic == call.arithmetic && each.weight_types == call.weight_types;
  });
  if (sum == end) {
    if (num_sums_ < kMostSums) {
      *sum = {call.op, call.arithmetic, call.weight_types, 0, 0, 0, 0, 0};
      ++num_sums_;
    } else {
      --sum;
    }
  }
  ++sum->calls;
  sum->nanoseconds += static_cast<uint64_t>(end_ns - begin_ns);
  sum->bytes += call.bytes;
  sum->multiply_adds += call.multiply_adds;
  sum->rows += static_cast<uint64_t>(call.rows);
  if (!with_trace_) return;
  if (events_.size() < kTraceEvents) {
    events_.push_back({call, begin_ns, end_ns, static_cast<int32_t>(::gettid())});
  } else {
    ++dropped_;
  }
}

uint64_t OpProfile::new_group() {
  const std::lock_guard lock(mutex_);
  return num_groups_++;
}

void OpProfile::mark(const TraceMark& mark) {
  if (!with_trace_) return;
  const std::lock_guard lock(mutex_);
  if (marks_.size() < kTraceMarks) {
    marks_.push_back(mark);
  } else {
    ++dropped_;
  }
}

std::vector<OpProfile::Sum> OpProfile::sums() const {
  const std::lock_guard lock(mutex_);
  return {sums_.begin(), sums_.begin() + static_cast<ptrdiff_t>(num_sums_)};
}

OpProfile::Trace OpProfile::trace() const {
  const std::lock_guard lock(mutex_);
  return {events_, marks_, dropped_};
}

}  // namespace headrace
