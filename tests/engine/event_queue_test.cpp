// Events by request and in the order of all, whichever way they are taken.
#include <catch2/catch.hpp>

#include <memory>
#include <vector>

#include "engine/event_queue.h"

using namespace headrace::engine;

namespace {

// Events of these requests, numbered from `first`; the last of each request that ends is its terminal one.
EventQueue::Events events_of(uint64_t first, const std::vector<uint64_t>& requests,
                             const std::vector<uint64_t>& ends = {}) {
  EventQueue::Events events;
  for (const uint64_t id : requests) {
    Event event;
    event.number = first++;
    event.request_id = id;
    events.push_back(std::make_shared<const Event>(event));
  }
  for (const uint64_t id : ends) {
    Event event;
    event.number = first++;
    event.request_id = id;
    event.is_last = true;
    events.push_back(std::make_shared<const Event>(event));
  }
  return events;
}

std::vector<uint64_t> numbers(EventQueue& queue) {
  std::vector<uint64_t> out;
  while (const auto event = queue.take()) out.push_back(event->number);
  return out;
}

}  // namespace

TEST_CASE("events come in their order, over all requests and of one") {
  EventQueue queue;
  for (const uint64_t id : {1, 2, 3}) queue.open(id);
  EventQueue::Events events = events_of(0, {1, 2, 1, 3, 2, 1});
  queue.add(events);
  CHECK(events.empty());
  CHECK(queue.take_of(2)->number == 1);
  CHECK(queue.take_of(9) == nullptr);
  CHECK(queue.take()->number == 0);
  CHECK(queue.take_of(1)->number == 2);
  events = events_of(6, {3, 1}, {2});
  queue.add(events);
  CHECK(queue.take_of(3)->number == 3);
  CHECK(queue.take_of(3)->number == 6);
  CHECK(queue.take_of(3) == nullptr);
  CHECK(numbers(queue) == std::vector<uint64_t>{4, 5, 7, 8});
  CHECK(queue.take() == nullptr);
}

TEST_CASE("a look goes on behind an event, past those of its request that stay") {
  EventQueue queue;
  for (const uint64_t id : {1, 2}) queue.open(id);
  EventQueue::Events events = events_of(0, {1, 2, 1, 2});
  queue.add(events);
  CHECK(queue.look(0)->number == 0);
  CHECK(queue.look(1)->number == 1);
  CHECK(queue.take_of(2)->number == 1);
  CHECK(queue.look(2)->number == 3);  // 2 waits behind 0
  CHECK(queue.look(4) == nullptr);
  CHECK(numbers(queue) == std::vector<uint64_t>{0, 2, 3});
}

TEST_CASE("a request is open from its submit to its last event") {
  EventQueue queue;
  queue.open(1);
  queue.open(2);
  queue.close(2);
  EventQueue::Events events = events_of(0, {1, 2}, {1});
  queue.add(events);
  CHECK(numbers(queue) == std::vector<uint64_t>{0, 2});
  events = events_of(3, {1});  // after the last one
  queue.add(events);
  CHECK(queue.take() == nullptr);
  CHECK(queue.take_of(1) == nullptr);
}
