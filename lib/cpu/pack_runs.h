// Reads a weight run by run, on all threads.
#pragma once

#include <functional>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace headrace {

// Fills the packed form from `count` rows of the file, of which run has its share; on `thread`.
using PackRun = std::function<Status(int64_t run, const std::byte* rows, int64_t count, int thread)>;

// Runs 0..num_runs - 1 of run_rows rows of row_bytes; those past the last row have fewer, or none. The first failure is
// returned, with the weight's name.
Status pack_runs(const WeightSource& source, int64_t num_runs, int64_t run_rows, uint64_t row_bytes, ThreadPool& pool,
                 const PackRun& pack);

}  // namespace headrace
