// Many cancelled requests leave a scheduler as it was: blocks, memory, threads.
#include <catch2/catch.hpp>

#include <malloc.h>

#include <filesystem>
#include <random>
#include <thread>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

ptrdiff_t num_threads() {
  using Folder = std::filesystem::directory_iterator;
  return std::distance(Folder("/proc/self/task"), Folder());
}

// Submits `count` requests and cancels each after a random number of steps, in whatever state it is then.
void cancel_at_random(Scheduler& scheduler, int count, std::mt19937_64& random, std::map<FinishReason, int>& ends) {
  std::multimap<int64_t, uint64_t> due;
  int submitted = 0;
  for (int64_t now = 0; submitted < count || !due.empty(); ++now) {
    for (int i = 0; i < 6 && submitted < count; ++i) {
      RequestParams params = request(prompt_of(1 + random() % 60, random() % 6), 0);
      params.n = 1 + static_cast<uint32_t>(random() % 2);
      params.tenant = std::string(1, static_cast<char>('a' + random() % 3));
      if (random() % 8 == 0) params.num_prompt_logprobs = 0;
      due.emplace(now + static_cast<int64_t>(random() % 25), submit(scheduler, params));
      ++submitted;
    }
    while (!due.empty() && due.begin()->first <= now) {
      (void)scheduler.cancel(due.begin()->second);
      due.erase(due.begin());
    }
    const auto more = scheduler.step();
    REQUIRE(more.ok());
    while (auto event = scheduler.next_event()) {
      if (event->type == EventType::kFinished) ++ends[event->finish_reason];
    }
  }
  REQUIRE_FALSE(*scheduler.step());
}

}  // namespace

TEST_CASE("10,000 requests cancelled at random moments leave blocks, memory and threads as at the start") {
  Toy toy;
  toy.options.kv_max_tokens = 1024;
  toy.options.max_num_seqs = 12;
  toy.options.max_num_batched_tokens = 48;
  auto scheduler = toy.scheduler();
  std::mt19937_64 random(3);
  std::map<FinishReason, int> ends;
  cancel_at_random(*scheduler, 2000, random, ends);  // buffers reach their sizes
  toy.executor->rows_of_runs = {};
  const ptrdiff_t threads = num_threads();
  const auto bytes = static_cast<int64_t>(mallinfo2().uordblks);
  cancel_at_random(*scheduler, 10000, random, ends);
  toy.executor->rows_of_runs = {};
  CHECK(num_threads() == threads);
  CHECK(static_cast<int64_t>(mallinfo2().uordblks) - bytes < 64 * 1024);
  CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
  CHECK(scheduler->check_invariants().ok());
  CHECK(ends[FinishReason::kCancelled] > 10000);
  CHECK(scheduler->report().metrics.preemptions > 0);
  CHECK(scheduler->next_event() == nullptr);
}

TEST_CASE("cancels from another thread while one steps do no less") {
  Toy toy;
  toy.options.kv_max_tokens = 1024;
  toy.options.max_num_seqs = 12;
  auto scheduler = toy.scheduler();
  std::atomic<bool> done{false}, failed{false};
  std::thread stepping([&] {
    for (bool working = true; working || !done.load();) {
      const auto more = scheduler->step();
      if (!more.ok()) {
        failed = true;
        return;
      }
      working = *more;
      while (scheduler->next_event()) {
      }
    }
  });
  std::mt19937_64 random(4);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4000 && !failed; ++i) {
    RequestParams params = request(prompt_of(1 + random() % 60, random() % 6), 0);
    params.n = 1 + static_cast<uint32_t>(random() % 2);
    auto id = scheduler->submit(params);
    while (!id.ok() && !failed) {
      std::this_thread::yield();  // the queue is full for a moment
      id = scheduler->submit(params);
    }
    if (id.ok()) ids.push_back(*id);
    while (ids.size() > random() % 20) {
      (void)scheduler->cancel(ids.back());
      ids.pop_back();
    }
  }
  for (const uint64_t id : ids) (void)scheduler->cancel(id);
  done = true;
  stepping.join();
  CHECK_FALSE(failed);
  while (scheduler->next_event()) {
  }
  CHECK(scheduler->report().metrics.num_running == 0);
  CHECK(scheduler->report().metrics.finished_requests == 4000);
  CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
}
