#include "base/thread_pool.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/processor_list.h"

namespace headrace {
namespace {

// Tells the processor that its thread waits in a loop.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 50 microseconds of pauses on current x86 cores: longer than the gap between two ops of one forward pass, far
// shorter than the gap between two requests.
constexpr int kSpins = 2000;

// Of one loop over ranges: an index takes half a word.
constexpr uint64_t kMostTasks = 0xffffffff;

void bind(std::thread& thread, int processor) {
  const int error = bind_thread(thread.native_handle(), processor);
  if (error != 0) throw std::system_error(error, std::generic_category(), "processor " + std::to_string(processor));
}

}  // namespace

int64_t ThreadPool::Range::take(bool last) {
  uint64_t word = word_.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t begin = word >> 32, end = word & kMostTasks;
    if (begin >= end) return -1;
    const uint64_t rest = last ? begin << 32 | (end - 1) : (begin + 1) << 32 | end;
    if (word_.compare_exchange_weak(word, rest, std::memory_order_acquire)) {
      return static_cast<int64_t>(last ? end - 1 : begin);
    }
  }
}

ThreadPool::ThreadPool(int num_threads, std::span<const int> processors)
    : ranges_(static_cast<size_t>(std::max(1, num_threads))) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
      if (!processors.empty()) bind(workers_.back(), processors[static_cast<size_t>(thread) % processors.size()]);
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
  for (int64_t first = 0; first < num_tasks; first += kMostTasks) {
    run_some(first, std::min<int64_t>(num_tasks - first, kMostTasks), task, call);
  }
}

void ThreadPool::run_some(int64_t first, int64_t num_tasks, const void* task, Erased call) {
  task_ = task;
  call_ = call;
  first_ = first;
  unfinished_.store(num_tasks, std::memory_order_relaxed);
  const auto tasks = static_cast<uint64_t>(num_tasks), threads = static_cast<uint64_t>(ranges_.size());
  const uint64_t each = tasks / threads, more = tasks % threads;
  uint64_t begin = 0;
  for (uint64_t thread = 0; thread < threads; ++thread) {
    const uint64_t end = begin + each + (thread < more ? 1 : 0);
    ranges_[thread].set(begin, end);  // publishes the above to who takes a task
    begin = end;
  }
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (const int sleepers = sleepers_.load(std::memory_order_seq_cst); sleepers > 0) {
    std::lock_guard lock(mutex_);
    if (sleepers < num_tasks) {
      wake_.notify_all();
    } else {
      for (int64_t helper = 1; helper < num_tasks; ++helper) wake_.notify_one();  // the first task is the caller's
    }
  }
  take_tasks(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // more threads than processors: let those with a task finish
    }
  }
}

void ThreadPool::take_tasks(int thread) {
  int64_t taken = 0;
  // From the first task on the loop cannot end before this thread says that it is done.
  const auto take_all = [&](size_t owner) {
    const bool others = owner != static_cast<size_t>(thread);
    for (;;) {
      const int64_t index = ranges_[owner].take(others);
      if (index < 0) return;
      ++taken;
      call_(task_, first_ + index, thread);
    }
  };
  for (size_t owner = static_cast<size_t>(thread); owner < ranges_.size(); ++owner) take_all(owner);
  for (size_t owner = 0; owner < static_cast<size_t>(thread); ++owner) take_all(owner);
  if (taken > 0) unfinished_.fetch_sub(taken, std::memory_order_release);
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins) pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stopping_.load() || generation_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stopping_.load()) return;
    seen = generation_.load(std::memory_order_acquire);
    take_tasks(thread);
  }
}

}  // namespace headrace
