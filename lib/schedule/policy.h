// What a scheduler weighs latency against throughput by: every constant behind its decisions.
#pragma once

#include <cstdint>

namespace headrace::schedule {

// Of values that left the pool: whether they are read back or computed again. kAuto: whichever is predicted to be sooner.
enum class LoadChoice : int32_t { kAuto, kAlways, kNever };

struct SchedulePolicy {
  // Prompts may make a step so many times as long as its decoding sequences alone; 0: as long as its rows take.
  double max_gap_ratio = 2.0;
  // Where several prompts are there and all sequences are of one tenant, each adds a time of the decoding sequences alone, up
  // to so many in all: large steps compute prompts faster, and sooner all decode together.
  double max_burst_gap_ratio = 3.0;
  // The same as the first while a prompt goes that gives its tenant no more sequences than its part: it waits for the others'
  // decoding too.
  double max_tenant_gap_ratio = 3.0;
  double max_gap_ns = 0.0;  // a step with decoding sequences takes no longer, instead of the ratios; 0: those
  // A step's, at the front of a context, or what takes as long; one, however long it takes.
  int64_t min_prompt_rows = 8;
  double output_weight = 2.0;     // an output token's service, in prompt tokens
  int64_t aging_us = 10'000'000;  // waiting that is worth a priority; 0: none is
  // The first requests of a tenant's line, of which the one with the longest cached prefix goes first; 1: none overtakes.
  int32_t prefix_window = 8;
  int32_t max_overtakes = 8;  // of one request
  int64_t max_events = 4096;  // of one request that nobody has taken: beyond that it waits; 0: no limit
  LoadChoice load = LoadChoice::kAuto;
};

}  // namespace headrace::schedule
