// Character properties and normalisation forms (Unicode data of utf8proc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::text {

// The White_Space property, as Rust's char::is_whitespace and a regular expression's \s.
inline bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c);            // Nd, Nl, No
bool is_punctuation(char32_t c);        // ASCII punctuation (symbols such as $ included), or any category P*
bool is_nonspacing_mark(char32_t c);    // Mn
bool is_mark(char32_t c);               // Mn, Mc, Me
bool is_control_or_format(char32_t c);  // Cc, Cf, Co: what a BERT normaliser cleans away
bool is_word(char32_t c);               // \w: alphabetic, mark, decimal digit, connector punctuation, joiner

// Appends the full lower-case mapping of one character (U+0130 gives two), without context rules.
void append_lowercase(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `valid` is UTF-8. Linear in its length but for sorting runs of combining marks (n log n).
std::string normalize(std::string_view valid, NormalForm form);

}  // namespace headrace::text
