// str() and repr() of values, as Python prints them.
#include <charconv>
#include <cmath>

#include <utf8proc.h>

#include "text/jinja/callable.h"
#include "text/jinja/value.h"
#include "text/utf8.h"

namespace headrace::text::jinja {

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back as `value`; Python writes them plainly for exponents -4 to 15.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view digits(buffer, static_cast<size_t>(end - buffer));
  const size_t e = digits.find('e');
  int exponent = 0;
  const char* exponent_begin = buffer + e + (buffer[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(digits);
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string string_repr(std::string_view bytes) {
  const bool has_single = bytes.find('\'') != std::string_view::npos;
  const bool has_double = bytes.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    const char32_t c = utf8_at(bytes, at, size);
    if (c == static_cast<char32_t>(quote) || c == U'\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\r') {
      out += "\\r";
    } else if (c == U'\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x7F) {
      out += static_cast<char>(c);
    } else {
      switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
        case UTF8PROC_CATEGORY_ZS: {
          const auto code = static_cast<uint32_t>(c);
          out += code < 0x100     ? fmt::format("\\x{:02x}", code)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                  : fmt::format("\\U{:08x}", code);
          break;
        }
        default: out.append(bytes.substr(at, size));
      }
    }
    at += size;
  }
  out += quote;
  return out;
}

namespace {

void append_repr(Heap& heap, std::string& out, const Value& value);

void append_items(Heap& heap, std::string& out, const Values& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(heap, out, item);
  }
}

void append_entries(Heap& heap, std::string& out, const DictObject& dict) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.entries) {
    if (!first) out += ", ";
    first = false;
    append_repr(heap, out, key);
    out += ": ";
    append_repr(heap, out, item);
  }
  out += '}';
}

void append_repr(Heap& heap, std::string& out, const Value& value) {
  heap.step();
  heap.check_stack();
  heap.check_string(out.size());
  switch (value.kind()) {
    case Kind::kUndefined: out += "Undefined"; return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += value.as_bool() ? "True" : "False"; return;
    case Kind::kInt: out += fmt::format("{}", value.as_int()); return;
    case Kind::kBigUint: out += fmt::format("{}", value.as_big_uint()); return;
    case Kind::kFloat: out += float_repr(value.as_double()); return;
    case Kind::kString:
      heap.step(value.bytes().size() / 16);
      out += value.text().markup ? "Markup(" + string_repr(value.bytes()) + ")" : string_repr(value.bytes());
      return;
    case Kind::kList:
      out += '[';
      append_items(heap, out, value.items());
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(heap, out, value.items());
      out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict: append_entries(heap, out, value.as<DictObject>()); return;
    case Kind::kRange: {
      const auto& range = value.as<RangeObject>();
      out += range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                             : fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
      return;
    }
    case Kind::kView:
      out += value.as<SequenceObject>().view_name;
      out += "([";
      append_items(heap, out, value.items());
      out += "])";
      return;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_entries(heap, out, value.as<NamespaceObject>().attributes);
      out += '>';
      return;
    case Kind::kLoop:
    case Kind::kCallable:
      if (auto text = printed_callable(value)) {
        out += *text;
        return;
      }
      [[fallthrough]];
    case Kind::kGenerator:
      // Python would print an address.
      fail("a {} can't be printed", type_name(value));
  }
}

}  // namespace

std::string repr(Heap& heap, const Value& value) {
  std::string out;
  append_repr(heap, out, value);
  heap.check_string(out.size());
  return out;
}

void append_str(TextBuilder& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return;
    case Kind::kString: out.append(value.text()); return;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigUint:
    case Kind::kFloat: out.append(repr(out.heap(), value), value.content() ? kContent : kTrusted); return;
    default:
      // A container's text mixes punctuation with elements of any origin.
      out.append(repr(out.heap(), value), kContent);
  }
}

Value to_str(Heap& heap, const Value& value) {
  if (value.is_string() && !value.text().markup) return value;
  TextBuilder out(heap);
  append_str(out, value);
  return make_string(heap, out.finish());
}

}  // namespace headrace::text::jinja
