// Decoders: token spellings to text, token by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace headrace::text {

// A step on one token's spelling.
struct TokenStep {
  enum class Kind { kByteLevel, kMetaspace, kWordPiece, kReplace, kRegexReplace, kByteFallback, kStrip };
  Kind kind = Kind::kByteLevel;
  std::string from;              // kMetaspace: the replacement character; kWordPiece: the prefix; kReplace: the literal
  std::string to;                // kReplace, kRegexReplace
  std::optional<Regex> pattern;  // kRegexReplace
  bool flag = false;             // kMetaspace: the first token loses its replacement characters; kWordPiece: clean up
  std::string strip_char;        // kStrip
  size_t strip_left = 0, strip_right = 0;
};

// A step on the text of all tokens together.
struct TextStep {
  enum class Kind { kStrip, kReplace };
  Kind kind = Kind::kStrip;
  std::string from, to;    // kReplace: from is not empty
  std::string strip_char;  // kStrip
  size_t strip_left = 0, strip_right = 0;
};

// Immutable; any thread. What a text has seen so far is in State.
class Decoder {
 public:
  struct State {
    size_t index = 0;  // tokens seen
    bool has_held = false;
    std::string held;  // the last token, while it depends on whether another one follows
    struct TextState {
      size_t left = 0;      // characters still to strip at the start
      std::string pending;  // what may yet be stripped or replaced
    };
    std::vector<TextState> steps;
    std::string tail;  // of an incomplete character
  };

  bool join_with_spaces = false;                  // no decoder at all: spellings with a space between
  std::optional<std::string> end_of_word_suffix;  // BPEDecoder: a space in its place, nothing at the end of the text
  std::vector<TokenStep> token_steps;
  std::vector<TextStep> text_steps;

  State start() const;
  // Appends to `out` what is certain once `spelling` is the next token: valid UTF-8.
  void push(State& state, std::string_view spelling, std::string& out) const;
  // The end of the text.
  void finish(State& state, std::string& out) const;
  // The bytes of a token that is not the first one.
  std::string bytes(std::string_view spelling) const;

 private:
  std::string run_token_steps(std::string_view spelling, bool first) const;
  void run_text_steps(State& state, std::string text, bool last, std::string& out) const;
};

}  // namespace headrace::text
