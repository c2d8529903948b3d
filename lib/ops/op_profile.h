// What the ops of one backend, and the steps around them, took: sums by kind, and each call where a trace is wanted.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace headrace {

// The ops of Backend first, then the spans that hold them: a draw of a token, a forward pass, a step of a scheduler.
enum class ProfiledOp : int32_t {
  kEmbed,
  kNorm,
  kLinear,
  kRopeStore,
  kAttention,
  kSelectPositions,
  kActivation,
  kAdd,
  kScale,
  kSoftcap,
  kRoute,
  kExperts,
  kHeadLinear,
  kGateRows,
  kStreams,
  kCausalConv,
  kRecurrence,
  kDecayGates,
  kLogitStats,
  kSample,
  kForward,
  kStep,
};

// "linear", "attention", "sample", ...
std::string_view profiled_op_name(ProfiledOp op);

// What a call did.
struct ProfiledCall {
  ProfiledOp op = ProfiledOp::kEmbed;
  ActivationType arithmetic = ActivationType::kFloat32;  // in which its multiply-adds were made
  uint64_t weight_types = 0;                             // of linear ops: 1 << DType of each weight, or'ed
  int64_t rows = 0;                                      // of the batch; a step: none
  int64_t sequences = 0;                                 // of a forward pass
  int64_t in_features = 0, out_features = 0;             // of linear ops; out over all products
  // Bytes the call had to read and write, each once: the weights of a linear op (its rows are small and stay in caches),
  // the visible keys and values of attention, inputs and outputs of the rest.
  uint64_t bytes = 0;
  uint64_t multiply_adds = 0;
};

// What happens to one of the things that go on side by side over many steps: a request, say. Names are static.
struct TraceMark {
  enum class Kind : int32_t { kBegin, kPoint, kEnd };
  Kind kind = Kind::kPoint;
  std::string_view name = {};
  std::string_view value_name = {}, detail = {};  // either may be empty
  int64_t value = 0;
  uint64_t group = 0, id = 0;  // whose: a number within a group
  uint32_t part = 0;           // of it
  int64_t ns = 0;              // since the profile was made
};

enum class ProfileMode : int32_t { kOff, kSums, kTrace };

// Thread rule: every function may be called from any thread. Recording allocates nothing.
class OpProfile {
 public:
  // Calls of one op, arithmetic and set of weight types.
  struct Sum {
    ProfiledOp op;
    ActivationType arithmetic;
    uint64_t weight_types;
    uint64_t calls, nanoseconds, bytes, multiply_adds, rows;
  };
  struct TraceEvent {
    ProfiledCall call;
    int64_t begin_ns, end_ns;  // since the profile was made
    int32_t thread;            // the system's number of the thread that called
  };
  struct Trace {
    std::vector<TraceEvent> events;  // in the order they ended
    std::vector<TraceMark> marks;    // in the order they were made
    uint64_t dropped;                // calls and marks that came when the room was used up
  };

  // with_trace holds room for kTraceEvents calls and kTraceMarks marks; throws std::bad_alloc where there is none. Its pages are touched as
  // calls are recorded.
  explicit OpProfile(bool with_trace);

  static constexpr size_t kTraceEvents = size_t{1} << 18;
  static constexpr size_t kTraceMarks = size_t{1} << 17;

  bool with_trace() const { return with_trace_; }
  int64_t now_ns() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count(); }
  void record(const ProfiledCall& call, int64_t begin_ns, int64_t end_ns);
  // A group that nobody else's marks are in.
  uint64_t new_group();
  // With a trace only.
  void mark(const TraceMark& mark);

  // In the order of first use.
  std::vector<Sum> sums() const;
  Trace trace() const;

 private:
  using Clock = std::chrono::steady_clock;
  // More sets of weight types than any file has; those beyond share the last sum.
  static constexpr size_t kMostSums = 64;

  const bool with_trace_;
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;  // guards what follows
  std::array<Sum, kMostSums> sums_;
  size_t num_sums_ = 0;
  std::vector<TraceEvent> events_;
  std::vector<TraceMark> marks_;
  uint64_t num_groups_ = 0;
  uint64_t dropped_ = 0;
};

// Records the time from its making to its end; with a null profile it does nothing.
class ProfiledSpan {
 public:
  ProfiledSpan(OpProfile* profile, const ProfiledCall& call)
      : profile_(profile), call_(call), begin_ns_(profile != nullptr ? profile->now_ns() : 0) {}
  ~ProfiledSpan() {
    if (profile_ != nullptr) profile_->record(call_, begin_ns_, profile_->now_ns());
  }
  ProfiledSpan(const ProfiledSpan&) = delete;
  ProfiledSpan& operator=(const ProfiledSpan&) = delete;

  // For what is known only later.
  ProfiledCall& call() { return call_; }

 private:
  OpProfile* const profile_;
  ProfiledCall call_;
  const int64_t begin_ns_;
};

}  // namespace headrace
