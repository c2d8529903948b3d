#include "schedule/request_queue.h"

namespace headrace::schedule {

bool RequestQueue::push(Sequence* sequence) {
  if (!all_.insert(sequence).second) return false;
  try {
    lines_[sequence->tenant].insert(sequence);
  } catch (...) {
    all_.erase(sequence);
    if (const auto line = lines_.find(sequence->tenant); line != lines_.end() && line->second.empty()) {
      lines_.erase(line);
    }
    throw;
  }
  return true;
}

bool RequestQueue::remove(Sequence* sequence) {
  const auto found = all_.find(sequence);
  if (found == all_.end() || *found != sequence) return false;
  all_.erase(found);
  const auto line = lines_.find(sequence->tenant);
  line->second.erase(sequence);
  if (line->second.empty()) lines_.erase(line);
  return true;
}

const RequestQueue::Line* RequestQueue::line(const Tenant* tenant) const {
  const auto found = lines_.find(tenant);
  return found == lines_.end() ? nullptr : &found->second;
}

}  // namespace headrace::schedule
