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

// All may come. Masks alive are counted.
class FreeMask : public TokenMask {
 public:
  explicit FreeMask(std::shared_ptr<int> alive) : alive_(std::move(alive)) { ++*alive_; }
  ~FreeMask() override { --*alive_; }
  bool fill(std::span<const float>, std::span<uint32_t>) override { return false; }
  bool advance(int32_t) override { return true; }
  void retreat(int32_t) override {}

 private:
  std::shared_ptr<int> alive_;
};

// What some of the requests have beside their prompts.
struct Extras {
  std::shared_ptr<int> masks = std::make_shared<int>(0);  // alive
  std::vector<std::shared_ptr<Session>> sessions;
};

void add(const Extras& extras, std::mt19937_64& random, RequestParams& params) {
  if (random() % 4 == 0) {
    params.token_mask = [alive = extras.masks] { return std::make_unique<FreeMask>(alive); };
  }
  const auto& session = extras.sessions[random() % extras.sessions.size()];
  if (random() % 4 != 0 || session->busy() || session->tokens().size() > 300) return;
  params.session = session;
  params.n = 1;
}

// Submits `count` requests and cancels each after a random number of steps, in whatever state it is then.
void cancel_at_random(Scheduler& scheduler, int count, std::mt19937_64& random, std::map<FinishReason, int>& ends,
                      const Extras* extras = nullptr) {
  std::multimap<int64_t, uint64_t> due;
  int submitted = 0;
  for (int64_t now = 0; submitted < count || !due.empty(); ++now) {
    for (int i = 0; i < 6 && submitted < count; ++i) {
      RequestParams params = request(prompt_of(1 + random() % 60, random() % 6), 0);
      params.n = 1 + static_cast<uint32_t>(random() % 2);
      params.tenant = std::string(1, static_cast<char>('a' + random() % 3));
      if (random() % 8 == 0) params.num_prompt_logprobs = 0;
      if (extras != nullptr) add(*extras, random, params);
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

TEST_CASE("cancelled with values on their way, guesses, masks and sessions they leave no more") {
  Toy toy;
  toy.options.kv_max_tokens = 1024;
  toy.options.kv_host_bytes = 64 << 10;
  toy.options.kv_load = schedule::LoadChoice::kAlways;
  toy.options.max_num_seqs = 12;
  toy.options.max_num_batched_tokens = 48;
  toy.options.drafter = "ngram,suffix";
  auto scheduler = toy.scheduler();
  std::mt19937_64 random(5);
  std::map<FinishReason, int> ends;
  Extras extras;
  const auto renew = [&] {
    for (auto& session : extras.sessions) REQUIRE(session->rewind(0).ok());
    while (extras.sessions.size() < 4) {
      auto made = Session::create(toy.model, scheduler->kv_cache(), toy.options);
      REQUIRE(made.ok());
      extras.sessions.push_back(made.take());
    }
  };
  renew();
  const ptrdiff_t threads = num_threads();
  for (int round = 0; round < 20; ++round) {
    cancel_at_random(*scheduler, 500, random, ends, &extras);
    renew();
    CHECK(*extras.masks == 0);
    CHECK(scheduler->check_invariants().ok());
    CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
    CHECK(scheduler->report().metrics.num_loading == 0);
  }
  CHECK(num_threads() == threads);
  CHECK(ends[FinishReason::kCancelled] > 10000);
  CHECK(scheduler->report().metrics.preemptions > 0);
  CHECK(scheduler->report().metrics.disk_tokens > 0);
  CHECK(scheduler->report().speculation.drafted() > 0);
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
