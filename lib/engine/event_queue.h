// Events on their way to the host, who takes the oldest of all or the oldest of one request.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "engine/event.h"

namespace headrace::engine {

// open alone allocates, so that an event that was made always arrives. The owner locks.
class EventQueue {
 public:
  using Events = std::list<std::shared_ptr<const Event>>;

  // Makes room for a request's events, whatever their number. After it threw nothing has changed.
  void open(uint64_t request_id);
  // Of a request that will have none.
  void close(uint64_t request_id) { lines_.erase(request_id); }
  // Takes all of `events`, whose numbers rise and are above all before. Those of requests that are not open are dropped; one
  // that is_last closes its request once it is taken.
  void add(Events& events);
  // Null where there is none.
  std::shared_ptr<const Event> take();
  // The one that take would give if requests whose first event has a number below `from` had none. It stays.
  std::shared_ptr<const Event> look(uint64_t from) const;
  std::shared_ptr<const Event> take_of(uint64_t request_id);

 private:
  struct Line;
  using Order = std::map<uint64_t, Line*>;  // lines that have events, by the number of their first
  struct Line {
    Events events;
    Order::node_type node;  // its own in the order, while it has no events
  };
  std::shared_ptr<const Event> take_first(Line& line);

  std::unordered_map<uint64_t, Line> lines_;  // of open requests
  Order order_;
};

}  // namespace headrace::engine
