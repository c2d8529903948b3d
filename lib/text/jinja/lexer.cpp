#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

// Line ends become "\n", and one at the very end goes away (jinja2's keep_trailing_newline is off).
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_data();
    push(TokenKind::kEnd, source_.size());
    return std::move(tokens_);
  }

 private:
  bool starts(size_t at, std::string_view what) const { return source_.compare(at, what.size(), what) == 0; }

  // Positions are asked for in rising order almost always, so the count goes on from the last one.
  Position position(size_t offset) {
    if (offset < counted_) counted_ = 0, here_ = {1, 1};
    for (; counted_ < offset && counted_ < source_.size(); ++counted_) {
      const char c = source_[counted_];
      if (c == '\n') {
        ++here_.line;
        here_.column = 1;
      } else if ((static_cast<uint8_t>(c) & 0xC0u) != 0x80u) {
        ++here_.column;
      }
    }
    return here_;
  }

  Token& push(TokenKind kind, size_t offset, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.position = position(offset);
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t size = 0;
      if (!is_space(utf8_at(source_, at, size))) break;
      at += size;
    }
    return at;
  }

  size_t skip_space_back(size_t begin, size_t end) const {
    while (end > begin) {
      size_t start = end - 1;
      while (start > begin && (static_cast<uint8_t>(source_[start]) & 0xC0u) == 0x80u) --start;
      size_t size = 0;
      if (!is_space(utf8_at(source_, start, size))) break;
      end = start;
    }
    return end;
  }

  void push_data(size_t begin, size_t end) {
    if (begin < end) push(TokenKind::kData, begin, source_.substr(begin, end - begin));
  }

  // Where the data before a tag ends, given the tag's sign and whether it is a statement or comment.
  size_t data_end(size_t begin, size_t tag, char sign, bool strips_line) const {
    if (sign == '-') return skip_space_back(begin, tag);
    if (sign == '+' || !strips_line) return tag;
    // lstrip_blocks: only blanks between the line's start and the tag go away.
    const size_t newline = tag == begin ? std::string::npos : source_.rfind('\n', tag - 1);
    const bool in_text = newline != std::string::npos && newline >= begin;
    const size_t line = in_text ? newline + 1 : begin;
    if (!in_text && !line_starting_) return tag;
    return skip_space(line) >= tag ? line : tag;
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // The end of "raw %}" after "{%" and sign, or npos when it's another statement.
  size_t raw_begin_end(size_t at) const {
    at = skip_space(at);
    if (!starts(at, "raw")) return std::string::npos;
    at = skip_space(at + 3);
    if (starts(at, "-%}")) return skip_space(at + 3);
    return starts(at, "%}") ? at + 2 : std::string::npos;
  }

  void lex_data() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push_data(begin, source_.size());
        at_ = source_.size();
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char type = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign ? 1 : 0);
    push_data(begin, data_end(begin, tag, sign, type != '{'));
    line_starting_ = false;
    if (type == '#') {
      lex_comment(tag, inside);
    } else if (type == '{') {
      push(TokenKind::kVariableBegin, tag);
      lex_code(tag, inside, "}}");
    } else if (const size_t raw = raw_begin_end(inside); raw != std::string::npos) {
      line_starting_ = raw > 0 && source_[raw - 1] == '\n';
      lex_raw(tag, raw);
    } else {
      push(TokenKind::kBlockBegin, tag);
      lex_code(tag, inside, "%}");
    }
  }

  // Behind the end of a statement or comment whose closing braces begin at `close`: its "-" strips the
  // whitespace that follows, and trim_blocks takes one newline unless it has a "+".
  void finish_block(size_t close, char sign, bool trims) {
    at_ = close + 2;
    if (sign == '-') {
      at_ = skip_space(at_);
    } else if (trims && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void lex_comment(size_t tag, size_t inside) {
    const size_t close = source_.find("#}", inside);
    if (close == std::string::npos) fail_at(position(tag), "the comment has no end");
    // The sign is part of the end only if the comment's text leaves room for it.
    const char sign = close > inside ? sign_at(close - 1) : '\0';
    finish_block(close, sign, true);
  }

  void lex_raw(size_t tag, size_t inside) {
    for (size_t open = source_.find("{%", inside); open != std::string::npos; open = source_.find("{%", open + 2)) {
      const char sign = sign_at(open + 2);
      size_t at = skip_space(open + 2 + (sign ? 1 : 0));
      if (!starts(at, "endraw")) continue;
      at = skip_space(at + 6);
      const char end_sign = sign_at(at);
      if (!starts(at + (end_sign ? 1 : 0), "%}")) continue;
      push_data(inside, data_end(inside, open, sign, true));
      finish_block(at + (end_sign ? 1 : 0), end_sign, true);
      return;
    }
    fail_at(position(tag), "the raw block has no end");
  }

  void lex_code(size_t tag, size_t inside, std::string_view close) {
    std::vector<char> open;  // closing brackets still to come
    size_t at = inside;
    for (;;) {
      at = skip_space(at);
      if (at >= source_.size()) {
        fail_at(position(tag), "this tag has no '{}'", close);
      }
      if (open.empty()) {
        const char sign = sign_at(at);
        const bool signed_end = (sign == '-' || (sign == '+' && close == "%}")) && starts(at + 1, close);
        if (signed_end || starts(at, close)) {
          push(close == "%}" ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, at);
          return finish_block(signed_end ? at + 1 : at, signed_end ? sign : '\0', close == "%}");
        }
      }
      at = lex_token(at, open);
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  // digits with single underscores between them, from `at` on; returns their end.
  template <class Accept>
  size_t digits_end(size_t at, Accept accept) const {
    while (at < source_.size()) {
      if (accept(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && accept(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  size_t lex_token(size_t at, std::vector<char>& open) {
    const char c = source_[at];
    if (is_digit(c)) return lex_number(at);
    if (c == '\'' || c == '"') return lex_string(at, c);
    size_t size = 0;
    if (is_name_start(utf8_at(source_, at, size))) {
      size_t end = at + size;
      while (end < source_.size() && is_name_part(utf8_at(source_, end, size))) end += size;
      push(TokenKind::kName, at, source_.substr(at, end - at));
      return end;
    }
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view symbol : kOperators) {
      if (!starts(at, symbol)) continue;
      if (c == '(' || c == '[' || c == '{') {
        open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) fail_at(position(at), "unexpected '{}'", c);
        if (open.back() != c) fail_at(position(at), "unexpected '{}', expected '{}'", c, open.back());
        open.pop_back();
      }
      push(TokenKind::kOperator, at, std::string(symbol));
      return at + symbol.size();
    }
    utf8_at(source_, at, size);
    fail_at(position(at), "unexpected character '{}'", source_.substr(at, size));
  }

  size_t lex_number(size_t at) {
    const auto decimal = [](char c) { return is_digit(c); };
    const auto strip = [&](size_t end) {
      std::string text = source_.substr(at, end - at);
      text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
      return text;
    };
    // A float: digits, then a fraction and/or an exponent. Not right behind a dot, where a number is an
    // index.
    const size_t whole = digits_end(at, decimal);
    size_t end = whole;
    bool is_float = false;
    if (at == 0 || source_[at - 1] != '.') {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits_end(end + 1, decimal);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const size_t sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
        if (end + 1 + sign < source_.size() && is_digit(source_[end + 1 + sign])) {
          end = digits_end(end + 1 + sign, decimal);
          is_float = true;
        }
      }
    }
    if (is_float) {
      const std::string text = strip(end);
      double value = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
      if (parsed.ec == std::errc::result_out_of_range) {
        const size_t e = text.find_first_of("eE");
        value = e != std::string::npos && text[e + 1] == '-' ? 0.0 : HUGE_VAL;
      }
      push(TokenKind::kFloat, at).number = value;
      return end;
    }
    int base = 10;
    size_t begin = at;
    end = whole;
    if (source_[at] == '0' && at + 1 < source_.size()) {
      const char mark = static_cast<char>(source_[at + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) {
        const auto accept = [base](char c) {
          const char low = static_cast<char>(c | 0x20);
          const int digit = is_digit(c) ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
          return digit < base;
        };
        end = digits_end(at + 2, accept);
        begin = at + 2;
        if (end == begin) base = 10, begin = at, end = at + 1;
      } else {
        // "007" is read as the two tokens 00 and 7.
        end = digits_end(at, [](char c) { return c == '0'; });
      }
    }
    std::string text = source_.substr(begin, end - begin);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (parsed.ec != std::errc()) fail_at(position(at), "the integer '{}' needs more than 64 bits", text);
    push(TokenKind::kInteger, at).integer = value;
    return end;
  }

  size_t lex_string(size_t at, char quote) {
    std::string out;
    size_t i = at + 1;
    const auto bad = [&](const char* what) { fail_at(position(at), "in this string: {}", what); };
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        out += source_[i];
        continue;
      }
      if (++i >= source_.size()) break;
      const char c = source_[i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"";
      static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t name = kNames.find(c); name != std::string_view::npos) {
        out += kMeanings[name];
      } else if (c == '\n') {
        // A backslash at the end of a line joins the lines.
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t digits = 0;
        while (digits < 3 && i + digits < source_.size() && source_[i + digits] >= '0' && source_[i + digits] <= '7')
          value = value * 8 + static_cast<uint32_t>(source_[i + digits++] - '0');
        i += digits - 1;
        utf8_append(out, value);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t value = 0;
        const char* begin = source_.data() + i + 1;
        const char* stop = source_.data() + std::min(source_.size(), i + 1 + digits);
        const auto parsed = std::from_chars(begin, stop, value, 16);
        if (parsed.ec != std::errc() || parsed.ptr != begin + digits) bad("a truncated escape");
        if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) bad("an escape that names no character");
        utf8_append(out, value);
        i += digits;
      } else if (c == 'N') {
        bad("\\N escapes are not supported");
      } else {
        out += '\\';
        out += c;
      }
    }
    if (i >= source_.size()) fail_at(position(at), "the string has no end");
    push(TokenKind::kString, at, std::move(out));
    return i + 1;
  }

  std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  size_t counted_ = 0;
  Position here_{1, 1};
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (const size_t bad = utf8_invalid_offset(source); bad != std::string_view::npos) {
    Position at{1, 1};
    for (size_t i = 0; i < bad; ++i) {
      const auto byte = static_cast<uint8_t>(source[i]);
      if (byte == '\n') {
        ++at.line;
        at.column = 1;
      } else if ((byte & 0xC0u) != 0x80u) {
        ++at.column;
      }
    }
    fail_at(at, "the template is not valid UTF-8");
  }
  return Lexer(normalize(source)).run();
}

}  // namespace headrace::text::jinja
