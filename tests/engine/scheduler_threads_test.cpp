// Many threads on one scheduler; meaningful above all under -DHEADRACE_SANITIZE=thread.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

TEST_CASE("one thread steps while four submit, cancel, read events and ask for statistics") {
  Toy toy;
  toy.options.kv_max_tokens = 512;
  toy.options.max_num_batched_tokens = 64;
  toy.options.max_num_seqs = 6;
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  std::atomic<int> submitted{0}, ended{0};
  std::atomic<int> submitting{4};
  std::atomic<bool> wrong{false};

  std::thread stepping([&] {
    while (submitting.load() > 0 || ended.load() < submitted.load()) {
      const auto more = scheduler->step();
      if (!more.ok()) wrong = true;
      if (more.ok() && !*more) std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto session = Session::create(toy.model, cache, toy.options).take();
      const auto read = [&] {
        while (auto event = scheduler->next_event()) {
          if (event->is_last) ++ended;
        }
      };
      for (uint64_t i = 0; i < 60; ++i) {
        RequestParams params = request(prompt_of(1 + (i * 7) % 60, i + t), static_cast<int64_t>(1 + i % 12));
        params.n = i % 5 == 0 ? 2 : 1;
        if (i % 4 == 1 && !session->busy()) {
          params.n = 1;
          params.session = session;
        }
        const auto id = scheduler->submit(params);
        if (id.ok()) {
          ++submitted;
          if (i % 3 == 0) (void)scheduler->cancel(*id);
        } else if (id.status().code() != StatusCode::kFailedPrecondition &&
                   id.status().code() != StatusCode::kResourceExhausted) {
          wrong = true;
        }
        if (i % 10 == 9) {
          (void)session->evaluate(prompt_of(3, i), nullptr);
          (void)session->rewind(0);
        }
        (void)scheduler->stats();
        // A second stepper is turned away, or does one step of the work.
        if (i % 16 == 0) (void)cache->stats();
        read();
      }
      --submitting;
      while (ended.load() < submitted.load() || submitting.load() > 0) {
        read();
        std::this_thread::yield();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stepping.join();
  CHECK_FALSE(wrong);
  CHECK(ended == submitted);
  CHECK(scheduler->next_event() == nullptr);
  const Status law = scheduler->check_invariants();
  INFO(law.to_string());
  CHECK(law.ok());
  scheduler.reset();
  CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
}

TEST_CASE("a second stepper is turned away or takes the next step") {
  Toy toy;
  auto scheduler = toy.scheduler();
  for (uint64_t i = 0; i < 10; ++i) submit(*scheduler, request(prompt_of(30, i), 100));
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (bool more = true; more;) {
        const auto stepped = scheduler->step();
        if (stepped.ok()) {
          more = *stepped;
        } else if (stepped.status().code() != StatusCode::kFailedPrecondition) {
          wrong = true;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(wrong);
  auto results = run_all(*scheduler);
  REQUIRE(results.size() == 10);
  for (auto& [id, result] : results) CHECK(result.only().tokens.size() == 100);
}

TEST_CASE("schedulers may be destroyed by any thread at any moment") {
  Toy toy;
  auto cache = toy.cache();
  for (int round = 0; round < 40; ++round) {
    auto scheduler = toy.scheduler(cache);
    std::vector<std::thread> threads;
    threads.emplace_back([held = scheduler] {
      while (held->step().ok()) {
      }
    });
    threads.emplace_back([held = scheduler] {
      for (uint64_t i = 0; held->submit(request(prompt_of(20, i), 5)).ok(); ++i) {
      }
      // Either the queue was full for a moment, or the scheduler is gone.
    });
    threads.emplace_back([held = scheduler] {
      for (int i = 0; i < 100; ++i) (void)held->next_event();
    });
    threads.emplace_back([held = scheduler] { held->shut_down(); });
    scheduler->shut_down();
    scheduler.reset();
    for (auto& thread : threads) thread.join();
    REQUIRE(cache->stats().free_blocks == cache->stats().num_blocks);
  }
}
