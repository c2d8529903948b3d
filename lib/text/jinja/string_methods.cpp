// The methods of str. Each keeps the origin of every byte it passes on.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

using ArgumentsOf = const CallArguments&;

const StyledText& text_argument(std::string_view function, const Value& value) {
  if (!value.is_string()) fail("{}() argument must be str, not {}", function, type_name(value));
  return value.text();
}

int64_t integer_argument(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.as_int();
}

void no_arguments(std::string_view name, ArgumentsOf arguments) { BoundArguments(name, arguments, {}); }

Value result(Interpreter& in, StyledText text, const Value& like) {
  text.markup = like.text().markup;
  return make_string(in.heap(), std::move(text));
}

template <CaseMapping mapping>
Value map_case(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  no_arguments("str", arguments);
  return result(in, map_text_case(in.heap(), self.text(), mapping), self);
}

template <bool left, bool right>
Value strip(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("strip", arguments, {"/chars"});
  const std::string* characters = nullptr;
  if (bound[0] && !bound[0]->is_none()) characters = &text_argument("strip", *bound[0]).bytes;
  return make_string(in.heap(), strip_text(in.heap(), self.text(), characters, left, right));
}

// The part [start, end) of a text that find, count, startswith, ... look at, in bytes; nothing if start is
// behind the end.
std::optional<std::pair<size_t, size_t>> window(const StyledText& text, const Value* start, const Value* end) {
  const auto size = static_cast<int64_t>(text.length);
  const auto place = [&](const Value* value, int64_t absent) {
    if (!value || value->is_none()) return absent;
    int64_t at = integer_argument(*value);
    if (at < 0) at = at < -size ? 0 : at + size;
    return at;
  };
  const int64_t from = place(start, 0);
  const int64_t to = std::min(place(end, size), size);
  if (from > to) return std::nullopt;
  return std::pair(text.offset_of(static_cast<size_t>(from)), text.offset_of(static_cast<size_t>(to)));
}

template <bool at_start>
Value starts_or_ends(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const char* name = at_start ? "startswith" : "endswith";
  const BoundArguments bound(name, arguments, {"/prefix", "/start", "/end"}, 1);
  const auto range = window(self.text(), bound[1], bound[2]);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) fail("{} first arg must be str or a tuple of str, not {}", name, type_name(affix));
    if (!range) return false;
    const auto part = std::string_view(self.bytes()).substr(range->first, range->second - range->first);
    return at_start ? part.starts_with(affix.bytes()) : part.ends_with(affix.bytes());
  };
  in.heap().step(1);
  if (bound[0]->is(Kind::kTuple)) {
    for (const Value& affix : bound[0]->items())
      if (matches(affix)) return Value::boolean(true);
    return Value::boolean(false);
  }
  return Value::boolean(matches(*bound[0]));
}

template <bool from_right, bool must>
Value find(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("find", arguments, {"/sub", "/start", "/end"}, 1);
  const StyledText& needle = text_argument("find", *bound[0]);
  const StyledText& text = self.text();
  in.heap().step(text.bytes.size() / 16);
  size_t at = std::string::npos;
  if (const auto range = window(text, bound[1], bound[2])) {
    const auto part = std::string_view(text.bytes).substr(0, range->second);
    if (from_right) {
      at = part.rfind(needle.bytes);
      if (at != std::string::npos && at < range->first) at = std::string::npos;
    } else {
      at = part.find(needle.bytes, range->first);
    }
  }
  if (at == std::string::npos) {
    if (must) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<int64_t>(text.index_of(at)));
}

Value count(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("count", arguments, {"/sub", "/start", "/end"}, 1);
  const StyledText& needle = text_argument("count", *bound[0]);
  const StyledText& text = self.text();
  in.heap().step(text.bytes.size() / 16);
  const auto range = window(text, bound[1], bound[2]);
  if (!range) return Value::integer(0);
  const auto part = std::string_view(text.bytes).substr(range->first, range->second - range->first);
  if (needle.bytes.empty()) {
    return Value::integer(static_cast<int64_t>(text.index_of(range->second) - text.index_of(range->first) + 1));
  }
  int64_t found = 0;
  for (size_t at = part.find(needle.bytes); at != std::string::npos;
       at = part.find(needle.bytes, at + needle.bytes.size()))
    ++found;
  return Value::integer(found);
}

Value replace(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("replace", arguments, {"/old", "/new", "/count"}, 2);
  const bool markup = self.text().markup;
  const int64_t limit = bound[2] ? integer_argument(*bound[2]) : -1;
  const StyledText& before = text_argument("replace", *bound[0]);
  text_argument("replace", *bound[1]);
  const Value after = markup ? escape_value(in.heap(), *bound[1]) : *bound[1];
  return result(in, replace_text(in.heap(), self.text(), before.bytes, after.text(), limit), self);
}

template <bool from_right>
Value split(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("split", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound[1] ? integer_argument(*bound[1]) : -1;
  const std::string* separator = nullptr;
  if (bound[0] && !bound[0]->is_none()) {
    separator = &text_argument("split", *bound[0]).bytes;
    if (separator->empty()) fail("empty separator");
  }
  return make_sequence(in.heap(), Kind::kList, split_text(in.heap(), self.text(), separator, limit, from_right));
}

Value splitlines(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("splitlines", arguments, {"keepends"});
  const bool keep = bound[0] && truthy(in.heap(), *bound[0]);
  return make_sequence(in.heap(), Kind::kList, split_text_lines(in.heap(), self.text(), keep));
}

template <bool from_right>
Value partition(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("partition", arguments, {"/sep"}, 1);
  const StyledText& separator = text_argument("partition", *bound[0]);
  if (separator.bytes.empty()) fail("empty separator");
  const StyledText& text = self.text();
  const size_t at = from_right ? text.bytes.rfind(separator.bytes) : text.bytes.find(separator.bytes);
  Heap& heap = in.heap();
  const auto part = [&](size_t begin, size_t end) { return make_string(heap, slice_text(heap, text, begin, end)); };
  if (at == std::string::npos) {
    const Value empty = make_string(heap, "", kTrusted);
    return make_sequence(heap, Kind::kTuple, from_right ? Values{empty, empty, self} : Values{self, empty, empty});
  }
  const size_t end = at + separator.bytes.size();
  return make_sequence(heap, Kind::kTuple, {part(0, at), part(at, end), part(end, text.bytes.size())});
}

template <bool prefix>
Value remove_affix(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("removeprefix", arguments, {"/affix"}, 1);
  const std::string& affix = text_argument(prefix ? "removeprefix" : "removesuffix", *bound[0]).bytes;
  const std::string& bytes = self.bytes();
  if (prefix ? !bytes.starts_with(affix) : !bytes.ends_with(affix)) return self;
  return make_string(in.heap(), slice_text(in.heap(), self.text(), prefix ? affix.size() : 0,
                                           prefix ? bytes.size() : bytes.size() - affix.size()));
}

Value join(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("join", arguments, {"/iterable"}, 1);
  TextBuilder out(in.heap());
  bool first = true;
  size_t index = 0;
  for (const Value& item : iterate(in.heap(), *bound[0])) {
    if (!first) out.append(self.text());
    first = false;
    if (self.text().markup) {
      out.append(escape_value(in.heap(), item).text());
    } else {
      if (!item.is_string()) fail("sequence item {}: expected str instance, {} found", index, type_name(item));
      out.append(item.text());
    }
    ++index;
  }
  return result(in, out.finish(), self);
}

template <int side>  // -1: text left, 0: centre, 1: text right
Value justify(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("center", arguments, {"/width", "/fillchar"}, 1);
  StyledText fill = plain_text(" ", kTrusted);
  if (bound[1]) {
    fill = text_argument("center", *bound[1]);
    if (fill.length != 1) fail("The fill character must be exactly one character long");
  }
  return result(in, justify_text(in.heap(), self.text(), integer_argument(*bound[0]), fill, side), self);
}

Value zfill(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("zfill", arguments, {"/width"}, 1);
  const StyledText& text = self.text();
  const int64_t width = integer_argument(*bound[0]);
  const size_t missing = width > static_cast<int64_t>(text.length) ? static_cast<size_t>(width) - text.length : 0;
  const size_t sign = !text.bytes.empty() && (text.bytes[0] == '+' || text.bytes[0] == '-') ? 1 : 0;
  TextBuilder out(in.heap());
  out.append(text, 0, sign);
  out.append_repeated("0", missing, kTrusted);
  out.append(text, sign, text.bytes.size());
  return result(in, out.finish(), self);
}

Value expandtabs(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("expandtabs", arguments, {"tabsize"});
  const int64_t size = bound[0] ? integer_argument(*bound[0]) : 8;
  const StyledText& text = self.text();
  TextBuilder out(in.heap());
  int64_t column = 0;
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t length = utf8_length(text.bytes[at]);
    const char c = text.bytes[at];
    if (c == '\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      out.append_repeated(" ", static_cast<size_t>(blanks), text.origin_at(at));
      column += blanks;
    } else {
      out.append(text, at, at + length);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    at += length;
  }
  return result(in, out.finish(), self);
}

Value format(Interpreter& in, const Value& self, ArgumentsOf arguments) { return brace_format(in, self, arguments); }

Value format_map(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  const BoundArguments bound("format_map", arguments, {"/mapping"}, 1);
  if (!bound[0]->is(Kind::kDict)) fail("format_map() takes a mapping");
  CallArguments named;
  for (const auto& [key, value] : bound[0]->as<DictObject>().entries)
    if (key.is_string()) named.named.emplace_back(key.bytes(), value);
  return brace_format(in, self, named);
}

template <bool (*predicate)(char32_t)>
Value all_are(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  no_arguments("str", arguments);
  const std::string& bytes = self.bytes();
  in.heap().step(bytes.size() / 16);
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    if (!predicate(utf8_at(bytes, at, size))) return Value::boolean(false);
    at += size;
  }
  return Value::boolean(!bytes.empty());
}

bool is_alphanumeric(char32_t c) { return is_alpha(c) || is_digit_char(c) || is_numeric(c); }

template <CaseTest test>
Value case_is(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  no_arguments("str", arguments);
  in.heap().step(self.bytes().size() / 16);
  return Value::boolean(text_case_is(self.bytes(), test));
}

Value is_ascii(Interpreter&, const Value& self, ArgumentsOf arguments) {
  no_arguments("isascii", arguments);
  return Value::boolean(self.text().ascii());
}

template <bool (*predicate)(char32_t)>
Value empty_or_all(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  if (self.bytes().empty()) return Value::boolean(true);
  return all_are<predicate>(in, self, arguments);
}

Value is_identifier(Interpreter& in, const Value& self, ArgumentsOf arguments) {
  no_arguments("isidentifier", arguments);
  size_t size = 0;
  if (self.bytes().empty() || !is_name_start(utf8_at(self.bytes(), 0, size))) return Value::boolean(false);
  return all_are<is_name_part>(in, self, arguments);
}

constexpr MethodEntry kMethods[] = {
    {"upper", map_case<CaseMapping::kUpper>},
    {"lower", map_case<CaseMapping::kLower>},
    {"casefold", map_case<CaseMapping::kFold>},
    {"title", map_case<CaseMapping::kTitle>},
    {"capitalize", map_case<CaseMapping::kCapitalize>},
    {"swapcase", map_case<CaseMapping::kSwap>},
    {"strip", strip<true, true>},
    {"lstrip", strip<true, false>},
    {"rstrip", strip<false, true>},
    {"startswith", starts_or_ends<true>},
    {"endswith", starts_or_ends<false>},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"replace", replace},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", splitlines},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"join", join},
    {"center", justify<0>},
    {"ljust", justify<-1>},
    {"rjust", justify<1>},
    {"zfill", zfill},
    {"expandtabs", expandtabs},
    {"format", format},
    {"format_map", format_map},
    {"isspace", all_are<is_space>},
    {"isalpha", all_are<is_alpha>},
    {"isdigit", all_are<is_digit_char>},
    {"isdecimal", all_are<is_decimal>},
    {"isnumeric", all_are<is_numeric>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isupper", case_is<CaseTest::kUpper>},
    {"islower", case_is<CaseTest::kLower>},
    {"istitle", case_is<CaseTest::kTitle>},
    {"isascii", is_ascii},
    {"isprintable", empty_or_all<is_printable>},
    {"isidentifier", is_identifier},
};

}  // namespace

const MethodEntry* find_string_method(std::string_view name) { return find_entry(kMethods, name); }

}  // namespace headrace::text::jinja
