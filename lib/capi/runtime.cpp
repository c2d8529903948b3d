#include "engine/runtime.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kStatsSize1 = offsetof(headrace_runtime_stats, overtakes) + sizeof(uint64_t);

}  // namespace

extern "C" {

headrace_status headrace_runtime_create(const headrace_options* options, headrace_runtime** runtime,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    HEADRACE_ASSIGN_OR_RETURN(auto created, engine::Runtime::create(options_or_default(options)));
    *runtime = new headrace_runtime{std::move(created)};
    return Status();
  });
}

void headrace_runtime_destroy(headrace_runtime* runtime) { delete runtime; }

headrace_status headrace_options_set_runtime(headrace_options* options, const headrace_runtime* runtime,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (options == nullptr) return null_argument("options");
    options->values.runtime = runtime == nullptr ? nullptr : runtime->runtime;
    return Status();
  });
}

void headrace_runtime_stats_init(headrace_runtime_stats* stats) { init_struct(stats); }

headrace_status headrace_runtime_get_stats(const headrace_runtime* runtime, headrace_runtime_stats* stats,
                                           headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    const engine::Runtime& shared = *runtime->runtime;
    headrace_runtime_stats values = {};
    values.num_threads = shared.threads->num_threads();
    values.max_bytes = shared.memory->limit();
    values.used_bytes = shared.memory->used();
    values.peak_bytes = shared.memory->peak();
    values.turns = shared.turns->num_turns();
    values.overtakes = shared.turns->num_overtakes();
    return write_struct("stats", values, stats, kStatsSize1);
  });
}

}  // extern "C"
