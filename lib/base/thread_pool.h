// A fork-join pool for the kernels of one engine: short parallel loops, started thousands of times a second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace headrace {

// Runs loops over task indices on the calling thread and num_threads - 1 workers. Workers spin for a short while
// after a loop (the next one usually follows within microseconds) and then sleep, so that an idle engine uses no CPU.
// Thread rule: one loop at a time; the pool belongs to whoever steps the engine.
class ThreadPool {
 public:
  // Worker `thread` may run only on processors[thread % size], or anywhere where the list is empty. The calling thread is
  // thread 0 and the host's own: it is not bound, and the first processor is left for it.
  // Throws std::system_error where the system gives no more threads or refuses a processor; the threads already started have
  // ended then.
  explicit ThreadPool(int num_threads, std::span<const int> processors = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index, thread) for each index in [0, num_tasks), thread in [0, num_threads()); returns when all are
  // done. Each thread goes through a range of neighbouring indices in order, and then takes what is left of the others'
  // ranges from their ends. So which thread runs which index is left to timing: a task's result must not depend on it. A
  // worker that the system has not scheduled meanwhile is not waited for: it finds nothing left to do, or tasks of the loop
  // that runs by then.
  template <class Task>
  void run(int64_t num_tasks, const Task& task) {
    if (num_tasks <= 0) return;
    if (workers_.empty() || num_tasks == 1) {
      for (int64_t index = 0; index < num_tasks; ++index) task(index, 0);
      return;
    }
    run_erased(num_tasks, &task, [](const void* erased, int64_t index, int thread) {
      (*static_cast<const Task*>(erased))(index, thread);
    });
  }

 private:
  using Erased = void (*)(const void* task, int64_t index, int thread);

  // Indices [begin, end) that nobody has taken, in one word: begin in the upper half. Taking one subtracts nothing from a
  // range that is empty, of whatever loop, as the next loop sets it anew.
  class alignas(64) Range {
   public:
    void set(uint64_t begin, uint64_t end) { word_.store(begin << 32 | end, std::memory_order_release); }
    // The first or the last of them; -1: none is left.
    int64_t take(bool last);

   private:
    std::atomic<uint64_t> word_{0};
  };

  void run_erased(int64_t num_tasks, const void* task, Erased call);
  void run_some(int64_t first, int64_t num_tasks, const void* task, Erased call);
  void work(int thread);
  void stop();
  void take_tasks(int thread);

  std::vector<Range> ranges_;  // of each thread
  std::vector<std::thread> workers_;
  // Of the loop that runs. Read only by who has taken a task of it, whom run_erased waits for.
  const void* task_ = nullptr;
  Erased call_ = nullptr;
  int64_t first_ = 0;
  alignas(64) std::atomic<int64_t> unfinished_{0};   // tasks
  alignas(64) std::atomic<uint64_t> generation_{0};  // loops so far: what workers look at to see a new one
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace headrace
