#include "base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>

namespace headrace {
namespace {

// About 50 microseconds of pauses on current x86 cores: longer than the gap between two ops of one forward pass, far
// shorter than the gap between two requests.
constexpr int kSpins = 2000;

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    stop();  // those that wait would outlive what they wait on
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t num_tasks, const void* task, Erased call) {
  task_ = task;
  call_ = call;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  busy_workers_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);  // publishes the fields above
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  for (int spins = 0; busy_workers_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      std::this_thread::yield();  // more threads than processors: let the others finish
    }
  }
}

void ThreadPool::take_tasks(int thread) {
  for (;;) {
    const int64_t index = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (index >= num_tasks_) return;
    call_(task_, index, thread);
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins) _mm_pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stopping_.load() || generation_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stopping_.load()) return;
    ++seen;
    take_tasks(thread);
    busy_workers_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace headrace
