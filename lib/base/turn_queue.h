// Who computes next, where several share one set of threads: one at a time, by priority, and nobody waits for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace headrace {

struct TurnPolicy {
  // Turns that may go to higher priorities while one waits; then it is its turn.
  int32_t max_overtakes = 8;
  // How long a lower priority leaves the threads to a higher one that has just had a turn and expects another.
  std::chrono::microseconds patience{5000};
};

class Turn;

// Thread rule: any thread.
class TurnQueue {
 public:
  explicit TurnQueue(const TurnPolicy& policy = {}) : policy_(policy) {}
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  uint64_t num_turns() const;      // given so far
  uint64_t num_overtakes() const;  // a waiting one passed by one of higher priority

 private:
  friend class Turn;
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    int32_t priority;
    int32_t overtaken = 0;
    Waiter* next = nullptr;  // that came later
  };

  void take(Turn& turn);
  void give(Turn& turn);
  const Waiter* first() const;
  // Until when `waiter` leaves the threads to a higher priority; a time past where to none.
  Clock::time_point left_until(const Waiter& waiter) const;
  void remove(const Waiter& waiter);

  const TurnPolicy policy_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Waiter* waiters_ = nullptr;  // in the order of their coming
  Turn* turns_ = nullptr;      // all that there are
  std::thread::id owner_;      // of the turn that is taken
  int depth_ = 0;              // 0: none is
  uint64_t num_turns_ = 0, num_overtakes_ = 0;
};

// The turns of one model, to be locked and unlocked. The thread that has one may take it again.
// Thread rule: any thread, several at once; equal priorities go in the order of their coming.
class Turn {
 public:
  // priority: higher goes first.
  explicit Turn(std::shared_ptr<TurnQueue> queue = std::make_shared<TurnQueue>(), int32_t priority = 0);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void lock() { queue_->take(*this); }
  void unlock() { queue_->give(*this); }
  // Whether another turn will be wanted soon after each: lower priorities then wait for it, for a moment.
  void expect_more(bool more);

 private:
  friend class TurnQueue;
  const std::shared_ptr<TurnQueue> queue_;
  const int32_t priority_;
  // Guarded by the queue's mutex:
  bool expects_more_ = false;
  TurnQueue::Clock::time_point expected_until_{};
  Turn* next_ = nullptr;
};

}  // namespace headrace
