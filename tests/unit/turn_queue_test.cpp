// Turns at shared threads: one at a time, the highest priority first, nobody for ever last.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/turn_queue.h"

namespace {

using namespace headrace;
using namespace std::chrono_literals;

// Starts threads that want a turn each, one after the other, while somebody has one, and says in which order they got it.
class Waiters {
 public:
  explicit Waiters(std::shared_ptr<TurnQueue> queue) : queue_(std::move(queue)) {}

  void add(const std::string& name, int32_t priority) {
    threads_.emplace_back([this, name, priority] {
      Turn turn(queue_, priority);
      ++num_started_;
      const std::lock_guard lock(turn);
      order_.push_back(name);  // guarded by the turn
    });
    // A thread that has started waits soon; the time is for that, and a test that were wrong without it fails now and then.
    while (num_started_ < static_cast<int>(threads_.size())) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
  }
  std::vector<std::string> join() {
    for (std::thread& thread : threads_) thread.join();
    return order_;
  }

 private:
  const std::shared_ptr<TurnQueue> queue_;
  std::atomic<int> num_started_{0};
  std::vector<std::string> order_;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("the highest priority goes first, and equal ones as they came") {
  const auto queue = std::make_shared<TurnQueue>();
  Turn mine(queue);
  Waiters waiters(queue);
  mine.lock();
  waiters.add("low", -1);
  waiters.add("first", 3);
  waiters.add("second", 3);
  waiters.add("middle", 0);
  mine.unlock();
  CHECK(waiters.join() == std::vector<std::string>{"first", "second", "middle", "low"});
  CHECK(queue->num_turns() == 5);
  CHECK(queue->num_overtakes() == 5);  // low by three, middle by two
}

TEST_CASE("one that was overtaken as often as may be goes before all") {
  const auto queue = std::make_shared<TurnQueue>(TurnPolicy{2, 0us});
  Turn mine(queue);
  Waiters waiters(queue);
  mine.lock();
  waiters.add("low", 0);
  for (const char* name : {"1", "2", "3"}) waiters.add(name, 5);
  mine.unlock();
  CHECK(waiters.join() == std::vector<std::string>{"1", "2", "low", "3"});
}

TEST_CASE("the thread that has the turn may take it again") {
  const auto queue = std::make_shared<TurnQueue>();
  Turn one(queue, 1), other(queue, 2);
  const std::lock_guard outer(one);
  const std::lock_guard inner(other);
  CHECK(queue->num_turns() == 1);
}

TEST_CASE(
    "a higher priority that expects another turn finds the threads free, and a lower one waits no longer than it may") {
  const auto queue = std::make_shared<TurnQueue>(TurnPolicy{1000000, 10min});
  Turn high(queue, 1);
  high.expect_more(true);
  high.lock();
  Waiters waiters(queue);
  waiters.add("low", 0);
  for (int i = 0; i < 50; ++i) {
    high.unlock();
    std::this_thread::sleep_for(1ms);  // what a step does beside its forward pass
    high.lock();
  }
  CHECK(queue->num_overtakes() == 50);
  SECTION("until no more is expected") { high.expect_more(false); }
  high.unlock();
  SECTION("until no more is expected, of one that rests") { high.expect_more(false); }
  CHECK(waiters.join().size() == 1);
}

TEST_CASE("patience ends, and with the one that was waited for") {
  const auto queue = std::make_shared<TurnQueue>(TurnPolicy{8, 2000us});
  Turn low(queue, 0);
  {
    Turn high(queue, 1);
    high.expect_more(true);
    { const std::lock_guard lock(high); }
    const auto before = std::chrono::steady_clock::now();
    { const std::lock_guard lock(low); }
    CHECK(std::chrono::steady_clock::now() - before > 500us);
  }
  const std::lock_guard lock(low);
}

TEST_CASE("of threads that want turns all the time each gets its own, one at a time") {
  const auto queue = std::make_shared<TurnQueue>(TurnPolicy{3, 100us});
  std::atomic<int> inside{0}, wrong{0};
  std::atomic<bool> ends{false};
  std::vector<int> turns(4, 0);  // of each thread
  std::vector<std::thread> threads;
  std::atomic<int> satisfied{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Turn turn(queue, i);
      turn.expect_more(i % 2 == 1);
      while (!ends) {
        const std::lock_guard lock(turn);
        if (++inside != 1) ++wrong;
        if (++turns[static_cast<size_t>(i)] == 50 && ++satisfied == 4) ends = true;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (const int count : turns) CHECK(count >= 50);
}
