#include "engine/event_queue.h"

#include <utility>

namespace headrace::engine {

void EventQueue::open(uint64_t request_id) {
  Order node;
  node.emplace(0, nullptr);
  Line& line = lines_[request_id];
  line.node = node.extract(node.begin());
  line.node.mapped() = &line;
}

void EventQueue::add(Events& events) {
  while (!events.empty()) {
    const Event& event = *events.front();
    const auto found = lines_.find(event.request_id);
    if (found == lines_.end()) {
      events.pop_front();
      continue;
    }
    Line& line = found->second;
    if (line.events.empty()) {
      line.node.key() = event.number;
      order_.insert(std::move(line.node));
    }
    line.events.splice(line.events.end(), events, events.begin());
  }
}

std::shared_ptr<const Event> EventQueue::take() {
  return order_.empty() ? nullptr : take_first(*order_.begin()->second);
}

std::shared_ptr<const Event> EventQueue::look(uint64_t from) const {
  const auto found = order_.lower_bound(from);
  return found == order_.end() ? nullptr : found->second->events.front();
}

std::shared_ptr<const Event> EventQueue::take_of(uint64_t request_id) {
  const auto found = lines_.find(request_id);
  return found == lines_.end() || found->second.events.empty() ? nullptr : take_first(found->second);
}

std::shared_ptr<const Event> EventQueue::take_first(Line& line) {
  auto event = std::move(line.events.front());
  line.events.pop_front();
  auto node = order_.extract(event->number);
  if (line.events.empty()) {
    line.node = std::move(node);
  } else {
    node.key() = line.events.front()->number;
    order_.insert(std::move(node));
  }
  if (event->is_last) lines_.erase(event->request_id);
  return event;
}

}  // namespace headrace::engine
