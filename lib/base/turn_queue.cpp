#include "base/turn_queue.h"

#include <algorithm>
#include <utility>

namespace headrace {

uint64_t TurnQueue::num_turns() const {
  const std::lock_guard lock(mutex_);
  return num_turns_;
}

uint64_t TurnQueue::num_overtakes() const {
  const std::lock_guard lock(mutex_);
  return num_overtakes_;
}

// One that was overtaken as often as may be, then the highest priority; the earliest of several.
const TurnQueue::Waiter* TurnQueue::first() const {
  const Waiter* best = nullptr;
  for (const Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (waiter->overtaken >= policy_.max_overtakes) return waiter;
    if (best == nullptr || waiter->priority > best->priority) best = waiter;
  }
  return best;
}

TurnQueue::Clock::time_point TurnQueue::left_until(const Waiter& waiter) const {
  Clock::time_point until{};
  if (waiter.overtaken >= policy_.max_overtakes) return until;
  for (const Turn* turn = turns_; turn != nullptr; turn = turn->next_) {
    if (turn->expects_more_ && turn->priority_ > waiter.priority) until = std::max(until, turn->expected_until_);
  }
  return until;
}

void TurnQueue::remove(const Waiter& waiter) {
  Waiter** link = &waiters_;
  while (*link != &waiter) link = &(*link)->next;
  *link = waiter.next;
}

void TurnQueue::take(Turn& turn) {
  std::unique_lock lock(mutex_);
  if (depth_ > 0 && owner_ == std::this_thread::get_id()) {
    ++depth_;
    return;
  }
  Waiter self{turn.priority_};
  Waiter** last = &waiters_;
  while (*last != nullptr) last = &(*last)->next;
  *last = &self;
  for (;;) {
    if (depth_ > 0 || first() != &self) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point until = left_until(self);
    if (until <= Clock::now()) break;
    changed_.wait_until(lock, until);
  }
  remove(self);
  for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (waiter->priority >= self.priority) continue;
    ++waiter->overtaken;
    ++num_overtakes_;
  }
  depth_ = 1;
  owner_ = std::this_thread::get_id();
  turn.expected_until_ = {};
  ++num_turns_;
}

void TurnQueue::give(Turn& turn) {
  const std::lock_guard lock(mutex_);
  if (--depth_ > 0) return;
  owner_ = {};
  if (turn.expects_more_) turn.expected_until_ = Clock::now() + policy_.patience;
  if (waiters_ != nullptr) changed_.notify_all();
}

Turn::Turn(std::shared_ptr<TurnQueue> queue, int32_t priority) : queue_(std::move(queue)), priority_(priority) {
  const std::lock_guard lock(queue_->mutex_);
  next_ = std::exchange(queue_->turns_, this);
}

Turn::~Turn() {
  const std::lock_guard lock(queue_->mutex_);
  Turn** link = &queue_->turns_;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
  if (queue_->waiters_ != nullptr) queue_->changed_.notify_all();
}

void Turn::expect_more(bool more) {
  const std::lock_guard lock(queue_->mutex_);
  if (std::exchange(expects_more_, more) && !more && queue_->waiters_ != nullptr) queue_->changed_.notify_all();
}

}  // namespace headrace
