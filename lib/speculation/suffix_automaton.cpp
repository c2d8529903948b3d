#include "speculation/suffix_automaton.h"

#include <algorithm>
#include <utility>

namespace headrace::speculation {
namespace {

// Shorter runs whose counts are kept up, from the longest on.
constexpr int kCountedLinks = 32;
// Edges of a state that are looked at for the most frequent one: more come after runs that say nothing.
constexpr int kMaxFanOut = 64;

}  // namespace

SuffixAutomaton::SuffixAutomaton() : states_(1), table_(64, -1) {}

size_t SuffixAutomaton::slot(int32_t state, int32_t token) const {
  uint64_t key = (uint64_t{static_cast<uint32_t>(state)} << 32 | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
  key ^= key >> 32;
  const size_t mask = table_.size() - 1;
  for (size_t at = static_cast<size_t>(key) & mask;; at = (at + 1) & mask) {
    if (table_[at] < 0) return at;
    const Edge& edge = edges_[static_cast<size_t>(table_[at])];
    if (edge.from == state && edge.token == token) return at;
  }
}

int32_t SuffixAutomaton::find_edge(int32_t state, int32_t token) const { return table_[slot(state, token)]; }

void SuffixAutomaton::grow_table() {
  std::vector<int32_t>(2 * table_.size(), -1).swap(table_);
  for (size_t i = 0; i < edges_.size(); ++i) table_[slot(edges_[i].from, edges_[i].token)] = static_cast<int32_t>(i);
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token, int32_t target) {
  if (2 * (edges_.size() + 1) > table_.size()) grow_table();
  State& from = states_[static_cast<size_t>(state)];
  table_[slot(state, token)] = static_cast<int32_t>(edges_.size());
  edges_.push_back({state, token, target, from.first_edge});
  from.first_edge = static_cast<int32_t>(edges_.size()) - 1;
}

void SuffixAutomaton::append(int32_t token) {
  const auto added = static_cast<int32_t>(states_.size());
  ++size_;
  states_.push_back({states_[static_cast<size_t>(last_)].length + 1, 0, -1, 0, 0});
  int32_t at = last_;
  while (at >= 0 && find_edge(at, token) < 0) {
    add_edge(at, token, added);
    at = states_[static_cast<size_t>(at)].link;
  }
  if (at >= 0) {
    const int32_t target = edges_[static_cast<size_t>(find_edge(at, token))].target;
    int32_t link = target;
    if (states_[static_cast<size_t>(at)].length + 1 != states_[static_cast<size_t>(target)].length) {
      // Its shorter runs now end at places where the longer ones do not: they get a state of their own.
      link = static_cast<int32_t>(states_.size());
      State copy = states_[static_cast<size_t>(target)];
      copy.length = states_[static_cast<size_t>(at)].length + 1;
      int32_t edge = std::exchange(copy.first_edge, -1);
      states_.push_back(copy);
      for (; edge >= 0; edge = edges_[static_cast<size_t>(edge)].next) {
        const Edge copied = edges_[static_cast<size_t>(edge)];
        add_edge(link, copied.token, copied.target);
      }
      for (; at >= 0; at = states_[static_cast<size_t>(at)].link) {
        const int32_t moved = find_edge(at, token);
        if (moved < 0 || edges_[static_cast<size_t>(moved)].target != target) break;
        edges_[static_cast<size_t>(moved)].target = link;
      }
      states_[static_cast<size_t>(target)].link = link;
    }
    states_[static_cast<size_t>(added)].link = link;
  }
  last_ = added;
  int32_t run = added;
  for (int i = 0; i < kCountedLinks && run > 0; ++i) {
    State& state = states_[static_cast<size_t>(run)];
    ++state.count;
    state.last_seen = static_cast<int32_t>(size_);
    run = state.link;
  }
}

SuffixAutomaton::Match SuffixAutomaton::shorter(Match match) const {
  const int32_t link = states_[static_cast<size_t>(match.state)].link;
  return link < 0 ? Match() : Match{link, states_[static_cast<size_t>(link)].length};
}

SuffixAutomaton::Match SuffixAutomaton::repeated() const { return shorter({last_, 0}); }

SuffixAutomaton::Match SuffixAutomaton::follow(Match match, int32_t token) const {
  for (;;) {
    const int32_t edge = find_edge(match.state, token);
    if (edge >= 0) return {edges_[static_cast<size_t>(edge)].target, match.length + 1};
    if (match.state == 0) return {};
    match = shorter(match);
  }
}

std::vector<SuffixAutomaton::Next> SuffixAutomaton::frequent(int32_t state, size_t most) const {
  std::vector<Next> best;
  int32_t total = 0, looked = 0;
  const auto before = [this](const Next& a, const Next& b) {
    if (a.count != b.count) return a.count > b.count;
    return states_[static_cast<size_t>(a.state)].last_seen > states_[static_cast<size_t>(b.state)].last_seen;
  };
  for (int32_t e = states_[static_cast<size_t>(state)].first_edge; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
    if (++looked > kMaxFanOut) return {};
    const Edge& edge = edges_[static_cast<size_t>(e)];
    const int32_t count = std::max(states_[static_cast<size_t>(edge.target)].count, 1);
    total += count;
    const Next next{edge.token, edge.target, count, 0};
    best.insert(std::upper_bound(best.begin(), best.end(), next, before), next);
    if (best.size() > most) best.pop_back();
  }
  for (Next& next : best) next.total = total;
  return best;
}

}  // namespace headrace::speculation
