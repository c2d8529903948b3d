// Splits a template into tokens as jinja2 does with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/failure.h"

namespace headrace::text::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, name, unescaped string, operator
  int64_t integer = 0;
  double number = 0;
  Position position;

  bool is_operator(std::string_view symbol) const { return kind == TokenKind::kOperator && text == symbol; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Fails (kMalformed, with the place) on what is no template; the last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace headrace::text::jinja
