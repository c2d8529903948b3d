// Programs of a scheduler: arrivals, cancels, forks, tiny pools, faults and limits in any order; see scheduler_program.h.
#include "engine/scheduler_program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;
  headrace::engine::toy::SchedulerProgram(data, size).run();
  return 0;
}
