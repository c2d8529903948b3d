// What several objects may hold together: books that add up, refusals with the counts.
#include <catch2/catch.hpp>

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory_budget.h"

using namespace headrace;

TEST_CASE("shares come out of one budget, and go back with their owners") {
  const auto budget = std::make_shared<MemoryBudget>(1000);
  MemoryShare a(budget, "a");
  CHECK(a.resize(600).ok());
  {
    MemoryShare b(budget, "b");
    const Status refused = b.resize(401);
    CHECK(refused.code() == StatusCode::kResourceExhausted);
    CHECK(refused.place() == "b");
    CHECK(refused.message().find("401 bytes") != std::string::npos);
    CHECK(refused.message().find("600 of the 1000") != std::string::npos);
    CHECK(b.bytes() == 0);
    CHECK(b.resize(std::numeric_limits<uint64_t>::max()).code() == StatusCode::kResourceExhausted);
    CHECK(b.resize(400).ok());
    CHECK(budget->used() == 1000);
    CHECK(a.resize(601).code() == StatusCode::kResourceExhausted);
    CHECK(a.bytes() == 600);
    CHECK(a.resize(500).ok());
    MemoryShare moved(std::move(b));
    CHECK(moved.bytes() == 400);
    CHECK(budget->used() == 900);
  }
  CHECK(budget->used() == 500);
  CHECK(budget->peak() == 1000);
  a = MemoryShare();
  CHECK(budget->used() == 0);
}

TEST_CASE("a budget without a limit counts, and none grants all") {
  const auto budget = std::make_shared<MemoryBudget>(0);
  MemoryShare counted(budget, "a"), alone;
  CHECK(counted.resize(uint64_t{1} << 60).ok());
  CHECK(alone.resize(uint64_t{1} << 60).ok());
  CHECK(budget->used() == uint64_t{1} << 60);
}

TEST_CASE("threads that take and give back leave the books as they were") {
  const auto budget = std::make_shared<MemoryBudget>(100);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        MemoryShare share(budget, "t");
        (void)share.resize(40);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(budget->used() == 0);
  CHECK(budget->peak() <= 100);
}
