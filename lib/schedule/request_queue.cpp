#include "schedule/request_queue.h"

namespace headrace::schedule {

void RequestQueue::push(Sequence* sequence) { sequences_.insert(sequence); }

bool RequestQueue::remove(Sequence* sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end() || *found != sequence) return false;
  sequences_.erase(found);
  return true;
}

}  // namespace headrace::schedule
