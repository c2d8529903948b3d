// Sequences that wait for room, in order, each tenant's in a line of its own.
#pragma once

#include <cstddef>
#include <map>
#include <set>

#include "schedule/sequence.h"

namespace headrace::schedule {

// A preempted sequence returns to its place, which is before all that came after it. Holds borrowed pointers; a sequence's
// order and tenant must not change while it is queued.
class RequestQueue {
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
  };

 public:
  using Line = std::set<Sequence*, Before>;

  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }

  // False when it was queued already.
  bool push(Sequence* sequence);
  // False when it was not queued.
  bool remove(Sequence* sequence);

  // All of them, whatever their tenants.
  const Line& all() const { return all_; }
  // Null where none of the tenant's waits.
  const Line* line(const Tenant* tenant) const;

 private:
  Line all_;
  std::map<const Tenant*, Line> lines_;  // none is empty
};

}  // namespace headrace::schedule
