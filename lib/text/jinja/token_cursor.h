// A place in a template's tokens.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"

namespace headrace::text::jinja {

class TokenCursor {
 public:
  // The last token is kEnd, which is never passed.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool accept_operator(std::string_view symbol) {
    if (!current().is_operator(symbol)) return false;
    next();
    return true;
  }
  bool accept_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    next();
    return true;
  }

  // Fail on another token, naming it and what is expected.
  void expect_operator(std::string_view symbol);
  void expect_kind(TokenKind kind, const char* what);
  std::string expect_name();

  // As messages name it.
  static std::string describe(const Token& token);

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace headrace::text::jinja
