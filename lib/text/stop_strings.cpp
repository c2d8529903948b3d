#include "text/stop_strings.h"

#include <array>

namespace headrace::text {

namespace {
constexpr size_t kMaxStopBytes = size_t{16} << 20;
}

struct StopMatcher::Automaton {
  // A prefix of a stop string; node 0 is the empty one. Children are a list: only as many as there are stop
  // strings.
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t fallback = 0;  // the longest proper suffix that is a prefix too
    uint32_t depth = 0;    // bytes
    uint32_t growing = 0;  // bytes of the longest suffix (itself included) that a next byte could prolong
    int32_t match = -1;    // the longest stop string that ends here, by index
    uint32_t match_size = 0;
    unsigned char byte = 0;
  };
  std::vector<Node> nodes{Node()};
  std::array<int32_t, 256> root_children;

  Node& at(int32_t node) { return nodes[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes[static_cast<size_t>(node)]; }

  int32_t child(int32_t node, unsigned char byte) const {
    if (node == 0) return root_children[byte];
    int32_t found = at(node).first_child;
    while (found >= 0 && at(found).byte != byte) found = at(found).next_sibling;
    return found;
  }

  int32_t next(int32_t node, unsigned char byte) const {
    for (;;) {
      const int32_t found = child(node, byte);
      if (found >= 0) return found;
      if (node == 0) return 0;
      node = at(node).fallback;
    }
  }

  void add(std::string_view stop, int32_t index) {
    int32_t node = 0;
    for (const char c : stop) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t found = child(node, byte);
      if (found < 0) {
        found = static_cast<int32_t>(nodes.size());
        Node fresh;
        fresh.byte = byte;
        fresh.depth = at(node).depth + 1;
        if (node == 0) {
          root_children[byte] = found;
        } else {
          fresh.next_sibling = at(node).first_child;
        }
        nodes.push_back(fresh);
        at(node).first_child = found;
      }
      node = found;
    }
    if (at(node).match < 0) {
      at(node).match = index;
      at(node).match_size = static_cast<uint32_t>(stop.size());
    }
  }

  // Breadth first: what a node falls back to is shorter and so complete.
  void link() {
    std::vector<int32_t> order;
    for (const int32_t node : root_children) {
      if (node >= 0) order.push_back(node);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      Node& node = at(order[i]);
      const Node& shorter = at(node.fallback);
      if (node.match < 0) {
        node.match = shorter.match;
        node.match_size = shorter.match_size;
      }
      node.growing = node.first_child >= 0 ? node.depth : shorter.growing;
      for (int32_t c = node.first_child; c >= 0; c = at(c).next_sibling) {
        at(c).fallback = next(node.fallback, at(c).byte);
        order.push_back(c);
      }
    }
  }
};

Result<StopMatcher> StopMatcher::create(const std::vector<std::string>& stops, bool include_stop) {
  auto automaton = std::make_shared<Automaton>();
  automaton->root_children.fill(-1);
  size_t bytes = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return invalid_argument(fmt::format("stop[{}]", i), "is empty");
    if (stops[i].size() > kMaxStopBytes - bytes) {
      return invalid_argument(fmt::format("stop[{}]", i), "the stop strings have more than {} bytes", kMaxStopBytes);
    }
    bytes += stops[i].size();
    automaton->add(stops[i], static_cast<int32_t>(i));
  }
  automaton->link();
  return StopMatcher(std::move(automaton), include_stop);
}

StopMatcher::Out StopMatcher::push(std::string_view piece) {
  if (stopped_) return {{}, true, best_index_};
  held_ += piece;
  for (const char c : piece) {
    state_ = automaton_->next(state_, static_cast<unsigned char>(c));
    ++position_;
    const Automaton::Node& node = automaton_->at(state_);
    if (node.match >= 0) {
      // Matches end here later than the best one, so an equal start means a longer one.
      const uint64_t start = position_ - node.match_size;
      if (best_index_ < 0 || start <= best_start_) {
        best_index_ = node.match;
        best_start_ = start;
        best_end_ = position_;
      }
    }
    if (best_index_ >= 0 && position_ - node.growing > best_start_) return finish();
  }
  // No match that is still to come starts before this.
  const uint64_t safe = position_ - automaton_->at(state_).growing;
  const uint64_t upto = best_index_ >= 0 && best_start_ < safe ? best_start_ : safe;
  Out out;
  out.text = held_.substr(0, static_cast<size_t>(upto - held_start_));
  held_.erase(0, out.text.size());
  held_start_ = upto;
  return out;
}

StopMatcher::Out StopMatcher::flush() {
  if (stopped_) return {{}, true, best_index_};
  if (best_index_ >= 0) return finish();
  Out out;
  out.text = std::move(held_);
  held_.clear();
  held_start_ = position_;
  state_ = 0;
  return out;
}

StopMatcher::Out StopMatcher::finish() {
  stopped_ = true;
  const uint64_t end = include_stop_ ? best_end_ : best_start_;
  Out out{held_.substr(0, static_cast<size_t>(end - held_start_)), true, best_index_};
  held_.clear();
  return out;
}

}  // namespace headrace::text
