// Regular expressions of pre-tokenizers, on PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace headrace::text {

// A stretch of a text and whether the pattern matched it.
struct Stretch {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Memory that matches reuse; one thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

// Immutable; any thread. Every match is bounded in steps and memory, and reaching a bound is an error.
class Regex {
 public:
  // `pattern` in Oniguruma's dialect. kUnsupported at `place` when it cannot be compiled.
  static Result<Regex> compile(std::string_view pattern, std::string_view place);

  // Cuts `text` (valid UTF-8) into matches and what lies between, in order and without gaps. The text stands
  // alone: anchors and look-around see its ends. Appends to `out`, with `base` added to each offset.
  Status split(std::string_view text, size_t base, std::vector<Stretch>& out, RegexScratch& scratch) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace headrace::text
