// Sequences that wait for room, most important first.
#pragma once

#include <cstddef>
#include <set>

#include "schedule/sequence.h"

namespace headrace::schedule {

// Ordered by SequenceOrder: a preempted sequence returns to its place, which is before all that came after it. Holds
// borrowed pointers; a sequence's order must not change while it is queued.
class RequestQueue {
 public:
  bool empty() const { return sequences_.empty(); }
  size_t size() const { return sequences_.size(); }
  Sequence* front() const { return *sequences_.begin(); }
  Sequence* back() const { return *sequences_.rbegin(); }

  void push(Sequence* sequence);
  // False when it was not queued.
  bool remove(Sequence* sequence);
  void clear() { sequences_.clear(); }

  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
  };
  std::set<Sequence*, Before> sequences_;
};

}  // namespace headrace::schedule
