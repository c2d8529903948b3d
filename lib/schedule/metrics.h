// What a scheduler counts, of all its requests and of each tenant's. Plain values: the stepping thread writes its own and
// publishes copies.
#pragma once

#include <cstdint>

#include "schedule/latency_histogram.h"

namespace headrace::schedule {

// Since the scheduler was made, unless it says `now`.
struct SchedulerMetrics {
  int64_t num_waiting = 0;  // now; sequences queued or preempted
  int64_t num_running = 0;  // now; sequences
  int64_t num_loading = 0;  // now; sequences whose values are on their way from beyond the pool
  uint64_t submitted_requests = 0;
  uint64_t refused_requests = 0;
  uint64_t finished_requests = 0;  // with a terminal event
  uint64_t failed_requests = 0;    // of those
  uint64_t stop_samples = 0;       // ended, by their finish reason
  uint64_t length_samples = 0;
  uint64_t cancelled_samples = 0;
  uint64_t deadline_samples = 0;
  uint64_t prompt_tokens = 0;    // of scheduled requests, cached ones included
  uint64_t cached_tokens = 0;    // of those
  uint64_t computed_tokens = 0;  // rows of prompts, and of what was computed again
  uint64_t decode_tokens = 0;    // rows of sequences that decode
  uint64_t output_tokens = 0;    // drawn
  uint64_t reused_tokens = 0;    // found in the cache, at each admission
  uint64_t disk_tokens = 0;      // of those, read from memory beyond the pool or from disk
  uint64_t forgone_loads = 0;    // times that computing was predicted to be sooner than reading
  uint64_t num_steps = 0;        // forward passes
  uint64_t step_ns = 0;          // in them
  uint64_t step_rows = 0;
  uint64_t step_sequences = 0;
  uint64_t preemptions = 0;
  uint64_t prefix_waits = 0;     // requests that waited for a prefix which another was computing
  LatencyHistogram queue;        // of requests: submit to first scheduled
  LatencyHistogram first_token;  // of samples: submit to first token
  LatencyHistogram inter_token;  // of samples: one token to the next
  LatencyHistogram step;         // of forward passes
};

// The same of one tenant.
struct TenantMetrics {
  double service = 0.0;  // computed prompt tokens and weighted output tokens
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  uint64_t submitted_requests = 0;
  uint64_t refused_requests = 0;  // by the tenant's own limits
  uint64_t finished_requests = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  uint64_t preemptions = 0;
  LatencyHistogram queue;
  LatencyHistogram first_token;
  LatencyHistogram inter_token;
};

}  // namespace headrace::schedule
