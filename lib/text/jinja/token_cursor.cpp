#include "text/jinja/token_cursor.h"

namespace headrace::text::jinja {

void TokenCursor::expect_operator(std::string_view symbol) {
  if (!accept_operator(symbol)) fail_at(current().position, "expected '{}', got {}", symbol, describe(current()));
}

void TokenCursor::expect_kind(TokenKind kind, const char* what) {
  if (current().kind != kind) fail_at(current().position, "expected {}, got {}", what, describe(current()));
  next();
}

std::string TokenCursor::expect_name() {
  if (current().kind != TokenKind::kName) fail_at(current().position, "expected a name, got {}", describe(current()));
  return next().text;
}

std::string TokenCursor::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData: return "text";
    case TokenKind::kVariableBegin: return "'{{'";
    case TokenKind::kVariableEnd:
    case TokenKind::kBlockEnd: return "the end of the tag";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kString: return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat: return "a number";
    case TokenKind::kEnd: return "the end of the template";
    default: return "'" + token.text + "'";
  }
}

}  // namespace headrace::text::jinja
