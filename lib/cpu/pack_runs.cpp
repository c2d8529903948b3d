#include "cpu/pack_runs.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "cpu/aligned_buffer.h"

namespace headrace {

Status pack_runs(const WeightSource& source, int64_t num_runs, int64_t run_rows, uint64_t row_bytes, ThreadPool& pool,
                 const PackRun& pack) {
  const uint64_t run_bytes = static_cast<uint64_t>(run_rows) * row_bytes;  // less than what is packed
  std::vector<AlignedBuffer> files;
  for (int thread = 0; thread < pool.num_threads(); ++thread) {
    HEADRACE_ASSIGN_OR_RETURN(AlignedBuffer file, AlignedBuffer::allocate(run_bytes, source.name));
    files.push_back(std::move(file));
  }
  std::mutex mutex;
  Status failure;
  pool.run(num_runs, [&](int64_t run, int thread) {
    std::byte* const rows = files[static_cast<size_t>(thread)].data();
    const int64_t count = std::clamp<int64_t>(source.rows - run * run_rows, 0, run_rows);
    Status status;
    if (count > 0) {
      status = source.read(static_cast<uint64_t>(run) * run_bytes,
                           std::span(rows, static_cast<size_t>(count) * static_cast<size_t>(row_bytes)));
    }
    if (status.ok()) status = pack(run, rows, count, thread);
    if (status.ok()) return;
    std::lock_guard lock(mutex);
    if (failure.ok()) failure = status.within(source.name);
  });
  return failure;
}

}  // namespace headrace
