// Character classes and case mapping with Python's rules.
#pragma once

#include <string>

namespace headrace::text::jinja {

bool is_space(char32_t c);  // str.isspace, and \s of re
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit_char(char32_t c);  // str.isdigit
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_cased(char32_t c);
bool is_case_ignorable(char32_t c);
bool is_printable(char32_t c);
bool is_name_start(char32_t c);
bool is_name_part(char32_t c);
bool is_word(char32_t c);      // \w of re
bool is_line_end(char32_t c);  // str.splitlines

// Full case mappings; up to three code points.
std::u32string to_upper(char32_t c);
std::u32string to_lower(char32_t c);
std::u32string to_title(char32_t c);

}  // namespace headrace::text::jinja
