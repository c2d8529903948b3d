// Filters on text and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

// soft_str: text as it is (Markup stays), anything else as str.
Value soft(Interpreter& in, const Value& value) { return value.is_string() ? value : to_str(in.heap(), value); }

Value with_markup(Interpreter& in, StyledText text, bool markup) {
  text.markup = markup;
  return make_string(in.heap(), std::move(text));
}

int64_t integer(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.as_int();
}

template <CaseMapping mapping>
Value map_case(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("filter", arguments, {});
  const Value text = soft(in, input);
  return with_markup(in, map_text_case(in.heap(), text.text(), mapping), text.text().markup);
}

// Words begin after whitespace, hyphens and opening brackets.
Value title(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("title", arguments, {});
  const Value value = soft(in, input);
  const StyledText& text = value.text();
  TextBuilder out(in.heap());
  const auto separates = [](char32_t c) {
    return c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<' || is_space(c);
  };
  for (size_t at = 0; at < text.bytes.size();) {
    size_t size = 0;
    const bool separator = separates(utf8_at(text.bytes, at, size));
    size_t end = at + size;
    while (end < text.bytes.size() && separates(utf8_at(text.bytes, end, size)) == separator) end += size;
    const size_t first = at + utf8_length(text.bytes[at]);
    out.append(map_text_case(in.heap(), slice_text(in.heap(), text, at, first), CaseMapping::kUpper));
    out.append(map_text_case(in.heap(), slice_text(in.heap(), text, first, end), CaseMapping::kLower));
    at = end;
  }
  return with_markup(in, out.finish(), false);
}

Value trim(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const Value text = soft(in, input);
  const std::string* characters = nullptr;
  if (bound[0] && !bound[0]->is_none()) {
    if (!bound[0]->is_string()) fail("strip arg must be None or str");
    characters = &bound[0]->bytes();
  }
  return make_string(in.heap(), strip_text(in.heap(), text.text(), characters, true, true));
}

Value replace(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const Value text = to_str(in.heap(), input);
  const Value before = to_str(in.heap(), *bound[0]);
  const Value after = to_str(in.heap(), *bound[1]);
  const int64_t limit = bound[2] && !bound[2]->is_none() ? integer(*bound[2]) : -1;
  return make_string(in.heap(), replace_text(in.heap(), text.text(), before.bytes(), after.text(), limit));
}

Value indent(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  Heap& heap = in.heap();
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_string()) fail("indent needs a text, not '{}'", type_name(input));
  TextBuilder indentation(heap);
  if (bound[0] && bound[0]->is_string()) {
    indentation.append(bound[0]->text());
  } else {
    const int64_t width = bound[0] ? integer(*bound[0]) : 4;
    indentation.append_repeated(" ", static_cast<size_t>(std::max<int64_t>(width, 0)), kTrusted);
  }
  StyledText blanks = indentation.finish();
  const bool markup = input.text().markup;
  if (markup) blanks = escape_value(heap, make_string(heap, std::move(blanks))).text();
  const bool first = bound[1] && truthy(heap, *bound[1]);
  const bool blank = bound[2] && truthy(heap, *bound[2]);
  TextBuilder source(heap);
  source.append(input.text());
  source.append("\n", kTrusted);
  const Values lines = split_text_lines(heap, source.finish(), false);
  TextBuilder out(heap);
  if (first) out.append(blanks);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      // The line's end was the text's own.
      out.append("\n", input.text().origins() & kContent);
      if (blank || !lines[i].bytes().empty()) out.append(blanks);
    }
    out.append(lines[i].text());
  }
  return with_markup(in, out.finish(), markup);
}

Value truncate(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  Heap& heap = in.heap();
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_string()) fail("truncate needs a text, not '{}'", type_name(input));
  const int64_t length = bound[0] ? integer(*bound[0]) : 255;
  const bool cut_words = bound[1] && truthy(heap, *bound[1]);
  const Value end = bound[2] ? *bound[2] : make_string(heap, "...", kTrusted);
  if (!end.is_string()) fail("truncate: end must be a text");
  const int64_t leeway = bound[3] && !bound[3]->is_none() ? integer(*bound[3]) : 5;
  const auto end_length = static_cast<int64_t>(end.text().length);
  if (length < end_length) fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) fail("expected leeway >= 0, got {}", leeway);
  const StyledText& text = input.text();
  const auto size = static_cast<int64_t>(text.length);
  if (size <= length || size - length <= leeway) return input;
  size_t cut = text.offset_of(static_cast<size_t>(length - end_length));
  if (!cut_words && cut > 0) {
    const size_t blank = text.bytes.rfind(' ', cut - 1);
    if (blank != std::string::npos) cut = blank;
  }
  return binary_operation(heap, BinaryOp::kAdd, make_string(heap, slice_text(heap, text, 0, cut)), end);
}

Value center(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("center", arguments, {"width"});
  const Value text = soft(in, input);
  const int64_t width = bound[0] ? integer(*bound[0]) : 80;
  return with_markup(in, justify_text(in.heap(), text.text(), width, plain_text(" ", kTrusted), 0), text.text().markup);
}

Value format(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const Value text = soft(in, input);
  if (!arguments.positional.empty() && !arguments.named.empty())
    fail("can't handle positional and keyword arguments at the same time");
  if (arguments.named.empty())
    return percent_format(in.heap(), text, make_sequence(in.heap(), Kind::kTuple, arguments.positional));
  auto dict = std::make_shared<DictObject>();
  for (const auto& [name, value] : arguments.named) dict->set(make_string(in.heap(), name, kTrusted), value);
  return percent_format(in.heap(), text, make_dict(in.heap(), std::move(dict)));
}

Value string(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("string", arguments, {});
  return soft(in, input);
}

Value safe(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("safe", arguments, {});
  return with_markup(in, to_str(in.heap(), input).text(), true);
}

Value escape(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("escape", arguments, {});
  return escape_value(in.heap(), input);
}

Value force_escape(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("forceescape", arguments, {});
  return escape_value(in.heap(), to_str(in.heap(), input));
}

Value wordcount(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("wordcount", arguments, {});
  const Value text = soft(in, input);
  const std::string& bytes = text.bytes();
  in.heap().step(bytes.size() / 16);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    const bool word = is_word(utf8_at(bytes, at, size));
    if (word && !inside) ++words;
    inside = word;
    at += size;
  }
  return Value::integer(words);
}

Value urlencode(Interpreter& in, const Value& input, const CallArguments& arguments) {
  BoundArguments("urlencode", arguments, {});
  Heap& heap = in.heap();
  TextBuilder out(heap);
  const auto quote = [&](const Value& value, bool in_query) {
    const Value text_value = to_str(heap, value);
    const StyledText& text = text_value.text();
    for (size_t i = 0; i < text.bytes.size(); ++i) {
      const char c = text.bytes[i];
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                         c == '.' || c == '-' || c == '~' || (c == '/' && !in_query);
      const uint8_t origin = text.origin_at(i);
      if (plain)
        out.append(std::string_view(&c, 1), origin);
      else if (c == ' ' && in_query)
        out.append("+", origin);
      else
        out.append(fmt::format("%{:02X}", static_cast<uint8_t>(c)), origin);
    }
  };
  if (input.is_string() || !iterable(input)) {
    quote(input, false);
    return make_string(heap, out.finish());
  }
  Values pairs;
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.as<DictObject>().entries)
      pairs.push_back(make_sequence(heap, Kind::kTuple, {key, value}));
  } else {
    pairs = iterate(heap, input);
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Values pair = iterate(heap, pairs[i]);
    if (pair.size() != 2) fail("urlencode needs pairs");
    if (i > 0) out.append("&", kTrusted);
    quote(pair[0], true);
    out.append("=", kTrusted);
    quote(pair[1], true);
  }
  return make_string(heap, out.finish());
}

Value tojson(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  Heap& heap = in.heap();
  JsonStyle style;
  if (bound[0]) style.ensure_ascii = truthy(heap, *bound[0]);
  if (bound[1] && !bound[1]->is_none()) {
    if (bound[1]->is_string()) {
      style.indent = bound[1]->bytes();
    } else {
      const int64_t width = std::max<int64_t>(integer(*bound[1]), 0);
      heap.check_string(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const Values separators = iterate(heap, *bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      fail("tojson: separators must be two texts");
    style.item_separator = separators[0].bytes();
    style.key_separator = separators[1].bytes();
  }
  if (bound[3]) style.sort_keys = truthy(heap, *bound[3]);
  return make_string(heap, dump_json(heap, input, style), kContent);
}

// Numbers
// --------------------------------------------------------------------------------------------------------

std::string_view stripped(std::string_view bytes) {
  size_t begin = 0, end = bytes.size();
  const auto space = [&](size_t at) {
    return is_space(static_cast<char32_t>(static_cast<uint8_t>(bytes[at]))) && static_cast<uint8_t>(bytes[at]) < 0x80;
  };
  while (begin < end && space(begin)) ++begin;
  while (end > begin && space(end - 1)) --end;
  return bytes.substr(begin, end - begin);
}

// Underscores may stand between digits only.
bool remove_underscores(std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') continue;
    const auto is_alnum = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    if (i == 0 || i + 1 >= text.size() || !is_alnum(text[i - 1]) || !is_alnum(text[i + 1])) return false;
  }
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  return true;
}

std::optional<double> parse_float(std::string_view bytes) {
  std::string text(stripped(bytes));
  if (!remove_underscores(text)) return std::nullopt;
  std::string_view digits = text;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.empty() || digits[0] == '+' || digits[0] == '-') return std::nullopt;
  double value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (parsed.ptr != digits.data() + digits.size() || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  // "nan(1)" is C's, not Python's.
  if (digits.find('(') != std::string_view::npos) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    const size_t e = digits.find_first_of("eE");
    value = e != std::string_view::npos && e + 1 < digits.size() && digits[e + 1] == '-' ? 0.0 : HUGE_VAL;
  }
  return negative ? -value : value;
}

std::optional<int64_t> parse_integer(std::string_view bytes, int64_t base) {
  std::string text(stripped(bytes));
  bool negative = false;
  size_t at = 0;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    at = 1;
  }
  text.erase(0, at);
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.erase(0, text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string::npos) return std::nullopt;
    base = 10;
  }
  if (!remove_underscores(text)) return std::nullopt;
  if (text.empty()) return std::nullopt;
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
  if (parsed.ptr != text.data() + text.size() || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec != std::errc() || value > static_cast<uint64_t>(INT64_MAX))
    fail("the integer '{}' needs more than 64 bits", text);
  return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
}

Value truncated(double value, bool content, const Value& otherwise) {
  if (std::isnan(value)) return otherwise;
  const double whole = std::trunc(value);
  if (!(std::fabs(whole) < 0x1p63)) fail("the integer needs more than 64 bits");
  return Value::integer(static_cast<int64_t>(whole), content);
}

Value to_int(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  const Value otherwise = bound[0] ? *bound[0] : Value::integer(0);
  const int64_t base = bound[1] ? integer(*bound[1]) : 10;
  if (input.is_undefined()) fail_undefined(input);
  if (input.is(Kind::kBigUint)) return input;
  if (input.is_integer()) return Value::integer(input.as_int(), input.content());
  if (input.is(Kind::kFloat)) {
    if (std::isinf(input.as_double())) fail("cannot convert float infinity to integer");
    return truncated(input.as_double(), input.content(), otherwise);
  }
  if (!input.is_string()) return otherwise;
  in.heap().step(input.bytes().size() / 16);
  const bool content = (input.text().origins() & kContent) != 0;
  if (const auto value = parse_integer(input.bytes(), base)) return Value::integer(*value, content);
  const auto value = parse_float(input.bytes());
  if (!value || std::isinf(*value)) return otherwise;
  return truncated(*value, content, otherwise);
}

Value to_float(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_number()) return Value::number(input.as_double(), input.content());
  if (input.is_string()) {
    in.heap().step(input.bytes().size() / 16);
    if (const auto value = parse_float(input.bytes()))
      return Value::number(*value, (input.text().origins() & kContent) != 0);
  }
  return bound[0] ? *bound[0] : Value::number(0.0);
}

Value absolute(Interpreter&, const Value& input, const CallArguments& arguments) {
  BoundArguments("abs", arguments, {});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is(Kind::kFloat)) return Value::number(std::fabs(input.as_double()), input.content());
  if (input.is(Kind::kBigUint)) return input;
  if (!input.is_integer()) fail("bad operand type for abs(): '{}'", type_name(input));
  if (input.as_int() == INT64_MIN) fail("the integer needs more than 64 bits");
  return Value::integer(std::llabs(input.as_int()), input.content());
}

// round(value, digits): to the nearest decimal, exactly; ties of the binary value go to even.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits >= 0) {
    char buffer[800];
    const auto end =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, static_cast<int>(digits));
    double out = 0;
    std::from_chars(buffer, end.ptr, out);
    return out;
  }
  if (digits < -308) return std::copysign(0.0, value);
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Value round(Interpreter&, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound[0] ? integer(*bound[0]) : 0;
  std::string_view method = "common";
  if (bound[1]) {
    if (!bound[1]->is_string()) fail("method must be common, ceil or floor");
    method = bound[1]->bytes();
  }
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_number()) fail("type {} doesn't define __round__ method", type_name(input));
  if (method == "common") {
    if (input.is(Kind::kFloat)) return Value::number(rounded(input.as_double(), precision), input.content());
    if (precision >= 0 || input.is(Kind::kBigUint))
      return input.is(Kind::kBool) ? Value::integer(input.as_int()) : input;
    return Value::integer(static_cast<int64_t>(rounded(input.as_double(), precision)), input.content());
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.as_double() * scale;
  return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale, input.content());
}

Value filesizeformat(Interpreter& in, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound("filesizeformat", arguments, {"binary"});
  const bool binary = bound[0] && truthy(in.heap(), *bound[0]);
  std::optional<double> bytes;
  if (input.is_number()) bytes = input.as_double();
  if (input.is_string()) bytes = parse_float(input.bytes());
  if (!bytes) fail("filesizeformat needs a number");
  const double base = binary ? 1024 : 1000;
  std::string text;
  if (*bytes == 1) {
    text = "1 Byte";
  } else if (*bytes < base) {
    text = fmt::format("{} Bytes", static_cast<int64_t>(std::max(*bytes, -1e18)));
  } else {
    double unit = base;
    constexpr std::string_view kPrefixes = "kMGTPEZY";
    for (size_t i = 0; i < kPrefixes.size(); ++i) {
      unit *= base;
      if (*bytes >= unit && i + 1 < kPrefixes.size()) continue;
      const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
      text = fmt::format("{:.1f} {}{}", base * *bytes / unit, prefix, binary ? "iB" : "B");
      break;
    }
  }
  return make_string(in.heap(), text, kContent);
}

constexpr FilterEntry kFilters[] = {
    {"upper", map_case<CaseMapping::kUpper>},
    {"lower", map_case<CaseMapping::kLower>},
    {"capitalize", map_case<CaseMapping::kCapitalize>},
    {"title", title},
    {"trim", trim},
    {"replace", replace},
    {"indent", indent},
    {"truncate", truncate},
    {"center", center},
    {"format", format},
    {"string", string},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"wordcount", wordcount},
    {"urlencode", urlencode},
    {"tojson", tojson},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"round", round},
    {"filesizeformat", filesizeformat},
};

}  // namespace

const FilterEntry* find_text_filter(std::string_view name) { return find_entry(kFilters, name); }

const FilterEntry* find_filter(std::string_view name) {
  const FilterEntry* entry = find_text_filter(name);
  return entry ? entry : find_sequence_filter(name);
}

}  // namespace headrace::text::jinja
