#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/unicode_exceptions.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

// The reference's value for `c` where it has one of its own, else `otherwise`.
template <size_t N>
bool reference_value(const exceptions::CodeRange (&ranges)[N], char32_t c, bool otherwise) {
  const auto* range = std::lower_bound(std::begin(ranges), std::end(ranges), c,
                                       [](const exceptions::CodeRange& r, char32_t code) { return r.last < code; });
  return range != std::end(ranges) && range->first <= c ? range->value : otherwise;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

bool is_word_by_category(char32_t c) {
  // Circled and squared letters are symbols by category but alphabetic by property.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D) {
    return true;
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return reference_value(exceptions::kNumeric, c,
                         k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return is_ascii_punctuation(c);
  const auto k = category(c);
  return reference_value(exceptions::kPunctuation, c, k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO);
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x300 && reference_value(exceptions::kNonspacingMark, c, category(c) == UTF8PROC_CATEGORY_MN);
}

bool is_mark(char32_t c) {
  if (c < 0x300) return false;
  const auto k = category(c);
  return reference_value(exceptions::kMark, c,
                         k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME);
}

bool is_control_or_format(char32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  const auto k = category(c);
  return reference_value(exceptions::kControl, c,
                         k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO);
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return reference_value(exceptions::kWord, c, is_word_by_category(c));
}

void append_lowercase(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    out.append("i\xCC\x87");  // the one character whose lower case is two
  } else {
    for (const exceptions::LowercaseRange& range : exceptions::kLowercase) {
      if (c < range.first || c > range.last) continue;
      utf8_append(out, static_cast<char32_t>(static_cast<int32_t>(c) + range.distance));
      return;
    }
    utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

std::string normalize(std::string_view valid, NormalForm form) {
  if (is_ascii(valid)) return std::string(valid);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options =
      static_cast<utf8proc_option_t>(compat ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE);

  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(valid.size());
  for (size_t at = 0, size = 0; at < valid.size(); at += size) {
    const auto c = static_cast<utf8proc_int32_t>(utf8_at(valid, at, size));
    if (reference_value(exceptions::kIndecomposable, static_cast<char32_t>(c), false)) {
      code_points.push_back(c);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, 32, options, &boundary);
    if (n < 1 || n > 32) {
      code_points.push_back(c);
    } else {
      code_points.insert(code_points.end(), parts, parts + n);
    }
  }

  // Canonical order by sorting each run of marks: the library's own exchange of neighbours is quadratic.
  const auto combining_class = [](utf8proc_int32_t c) {
    const bool starter = reference_value(exceptions::kStarter, static_cast<char32_t>(c), false);
    return starter ? 0 : utf8proc_get_property(c)->combining_class;
  };
  for (size_t i = 0; i < code_points.size();) {
    if (combining_class(code_points[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < code_points.size() && combining_class(code_points[end]) != 0) ++end;
    std::stable_sort(code_points.begin() + static_cast<ptrdiff_t>(i), code_points.begin() + static_cast<ptrdiff_t>(end),
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end;
  }

  auto count = static_cast<utf8proc_ssize_t>(code_points.size());
  if (compose) {
    count = utf8proc_normalize_utf32(code_points.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (count < 0) return std::string(valid);  // unreachable: every value is a scalar value
  }
  std::string out;
  out.reserve(valid.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8_append(out, static_cast<char32_t>(code_points[static_cast<size_t>(i)]));
  }
  return out;
}

}  // namespace headrace::text
