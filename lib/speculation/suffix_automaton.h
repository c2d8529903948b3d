// All that ever followed any run of tokens of a text, with counts: a suffix automaton (Blumer et al. 1985), built as the text
// grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::speculation {

// At most two states and three edges per token. Not thread-safe.
class SuffixAutomaton {
 public:
  SuffixAutomaton();

  // A token at the end of the text.
  void append(int32_t token);
  int64_t size() const { return size_; }  // tokens

  // A run of tokens that stands in the text: a state, and how many of its last tokens count.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;
  };
  // The longest run at the text's end that stands in it before, too.
  Match repeated() const;
  // The longest shorter run at the match's end that also stands elsewhere.
  Match shorter(Match match) const;
  // The longest run at the end of `match` and the token that stands in the text.
  Match follow(Match match, int32_t token) const;

  // A token that came after a run.
  struct Next {
    int32_t token = 0;
    int32_t state = 0;
    int32_t count = 0;  // about: long chains of shorter runs are counted only in part
    int32_t total = 0;  // of all tokens that came
  };
  // Up to `most` of those that came most often after the run, the most frequent first, of equals the latest.
  std::vector<Next> frequent(int32_t state, size_t most) const;

 private:
  struct State {
    int32_t length = 0;  // of its longest run
    int32_t link = -1;   // state of the longest shorter run that other places share
    int32_t first_edge = -1;
    int32_t count = 0;
    int32_t last_seen = 0;  // size of the text when it came last
  };
  struct Edge {
    int32_t from = 0, token = 0, target = 0;
    int32_t next = -1;  // of the same state
  };
  int32_t find_edge(int32_t state, int32_t token) const;  // or -1
  void add_edge(int32_t state, int32_t token, int32_t target);
  void grow_table();
  size_t slot(int32_t state, int32_t token) const;

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // of edges by (state, token), open addressing; -1: free. A power of two
  int32_t last_ = 0;
  int64_t size_ = 0;
};

}  // namespace headrace::speculation
