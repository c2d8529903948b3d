// Finds stop strings in text that arrives in pieces, and says how much of it may be shown.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace headrace::text {

// Of all occurrences of stop strings the one that starts first in the text wins, and of those that start
// there the longest. The output is a function of the text alone, however it is cut into pieces: a match that
// a longer or earlier one could still replace is held back until that is decided, one piece later as a rule.
// Time is linear in the text (Aho and Corasick, CACM 1975); held text is shorter than the longest stop
// string. Copies share the automaton. Thread rule: one thread per copy.
class StopMatcher {
 public:
  // With include_stop the text ends after the stop string, otherwise before it. No stop strings: nothing is
  // ever held. kInvalidArgument for an empty string ("stop[3]") and for more than 16 MiB in all.
  static Result<StopMatcher> create(const std::vector<std::string>& stops, bool include_stop = false);

  struct Out {
    std::string text;  // to append to what was given before
    bool stopped = false;
    int32_t matched_index = -1;  // in stops; the first of equal ones
  };
  // Once stopped, further pieces give nothing but `stopped` again.
  Out push(std::string_view piece);
  // The text is over: gives what was held back, or the match that was not decided.
  Out flush();

 private:
  struct Automaton;
  StopMatcher(std::shared_ptr<const Automaton> automaton, bool include_stop)
      : automaton_(std::move(automaton)), include_stop_(include_stop) {}
  Out finish();

  std::shared_ptr<const Automaton> automaton_;
  bool include_stop_ = false;
  bool stopped_ = false;
  int32_t state_ = 0;
  std::string held_;  // text from position held_start_ on
  uint64_t held_start_ = 0;
  uint64_t position_ = 0;  // bytes read
  int32_t best_index_ = -1;
  uint64_t best_start_ = 0;
  uint64_t best_end_ = 0;
};

}  // namespace headrace::text
