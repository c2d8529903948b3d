// str % values and str.format with Python's mini-languages.
#include <charconv>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  size_t width = 0;
  char grouping = '\0';
  std::optional<int> precision;
  char type = '\0';
};

constexpr int kMaxPrecision = 1000;

std::string to_digits(double value, std::chars_format format, int precision) {
  // Room for the largest double's 309 digits and the fraction.
  std::string buffer(static_cast<size_t>(precision) + 400, '\0');
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format, precision);
  buffer.resize(static_cast<size_t>(end.ptr - buffer.data()));
  return buffer;
}

// |value| in the style of `type`, without sign.
std::string float_digits(double value, char type, std::optional<int> precision, bool alternate) {
  const bool upper = type == 'E' || type == 'F' || type == 'G';
  const double magnitude = std::fabs(value);
  std::string out;
  if (std::isnan(value)) {
    out = "nan";
  } else if (std::isinf(value)) {
    out = "inf";
  } else {
    switch (type) {
      case 'e':
      case 'E': out = to_digits(magnitude, std::chars_format::scientific, precision.value_or(6)); break;
      case 'f':
      case 'F': out = to_digits(magnitude, std::chars_format::fixed, precision.value_or(6)); break;
      case '%': out = to_digits(magnitude * 100, std::chars_format::fixed, precision.value_or(6)); break;
      case 'g':
      case 'G':
      case 'n': out = to_digits(magnitude, std::chars_format::general, std::max(precision.value_or(6), 1)); break;
      default:
        if (!precision) {
          out = float_repr(magnitude);
        } else {
          // As 'g', but never without a fraction; the exponent form starts one digit earlier.
          const int digits = std::max(*precision, 1);
          const std::string scientific = to_digits(magnitude, std::chars_format::scientific, digits - 1);
          const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
          if (magnitude != 0 && exponent == digits - 1) {
            out = scientific;
            const size_t e = out.find('e');
            size_t last = e;
            if (out.find('.') != std::string::npos) {
              while (out[last - 1] == '0') --last;
              if (out[last - 1] == '.') --last;
            }
            out.erase(last, e - last);
          } else {
            out = to_digits(magnitude, std::chars_format::general, digits);
            if (out.find_first_of(".e") == std::string::npos) out += ".0";
          }
        }
    }
    if (alternate && out.find('.') == std::string::npos) {
      const size_t e = out.find('e');
      out.insert(e == std::string::npos ? out.size() : e, ".");
    }
    if (type == '%') out += '%';
  }
  if (upper)
    for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

std::string integer_digits(uint64_t magnitude, int base, bool upper) {
  char buffer[66];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base);
  std::string out(buffer, end.ptr);
  if (upper)
    for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

uint64_t magnitude_of(const Value& value) {
  if (value.is(Kind::kBigUint)) return value.as_big_uint();
  const int64_t number = value.as_int();
  return number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
}

bool is_negative(const Value& value) {
  if (value.is(Kind::kBigUint)) return false;
  return value.is(Kind::kFloat) ? std::signbit(value.as_double()) && !std::isnan(value.as_double())
                                : value.as_int() < 0;
}

void group_digits(std::string& digits, char separator, size_t every) {
  size_t whole = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (whole == std::string::npos) whole = digits.size();
  if (const size_t e = digits.find_first_of("eE"); every == 3 && e != std::string::npos) whole = std::min(whole, e);
  for (size_t at = whole; at > every;) {
    at -= every;
    digits.insert(at, 1, separator);
  }
}

void append_padded(TextBuilder& out, const StyledText& text, const Spec& spec, char default_align, uint8_t origin) {
  const size_t missing = spec.width > text.length ? spec.width - text.length : 0;
  const char align = spec.align ? spec.align : default_align;
  const size_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  out.append_repeated(spec.fill, left, origin);
  out.append(text);
  out.append_repeated(spec.fill, missing - left, origin);
}

// sign + prefix + digits, padded.
void append_number(TextBuilder& out, std::string sign, const std::string& prefix, std::string digits, const Spec& spec,
                   uint8_t origin) {
  sign += prefix;
  const size_t size = sign.size() + digits.size();
  if (spec.align == '=' && spec.width > size) {
    TextBuilder inner(out.heap());
    inner.append(sign, origin);
    inner.append_repeated(spec.fill, spec.width - size, origin);
    inner.append(digits, origin);
    out.append(inner.finish());
    return;
  }
  append_padded(out, plain_text(sign + digits, origin), spec, '>', origin);
}

std::string sign_of(bool negative, char wanted) {
  if (negative) return "-";
  return wanted == '+' ? "+" : wanted == ' ' ? " " : "";
}

// A width or precision at `at`; moves behind it.
size_t parse_count(std::string_view text, size_t& at) {
  size_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + static_cast<size_t>(text[at] - '0');
    if (value > 1'000'000'000) exhausted("a field's width is too large");
  }
  return value;
}

int checked_precision(size_t value) {
  if (value > kMaxPrecision) exhausted("a number's precision is over {}", kMaxPrecision);
  return static_cast<int>(value);
}

// str % values
// ---------------------------------------------------------------------------------------------------

class PercentFormat {
 public:
  PercentFormat(Heap& heap, const Value& format, const Value& values)
      : heap_(heap), text_(format.text()), values_(values), out_(heap) {
    if (values.is(Kind::kTuple)) {
      arguments_ = values.items();
    } else {
      arguments_.push_back(values);
    }
  }

  Value run() {
    const std::string& bytes = text_.bytes;
    size_t begin = 0;
    for (;;) {
      const size_t percent = bytes.find('%', begin);
      const size_t end = std::min(percent, bytes.size());
      out_.append(text_, begin, end);
      if (percent == std::string::npos) break;
      begin = convert(percent);
    }
    const bool mapping =
        values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is_undefined() || values_.is(Kind::kRange);
    if (next_ < arguments_.size() && !mapping) fail("not all arguments converted during string formatting");
    StyledText result = out_.finish();
    result.markup = text_.markup;
    return make_string(heap_, std::move(result));
  }

 private:
  const Value& take() {
    if (next_ >= arguments_.size()) fail("not enough arguments for format string");
    return arguments_[next_++];
  }

  int64_t take_integer() {
    const Value& value = take();
    if (!value.is_integer()) fail("* wants int");
    return value.as_int();
  }

  size_t convert(size_t percent) {
    heap_.step();
    const std::string& format = text_.bytes;
    const uint8_t origin = text_.origin_at(percent);
    size_t at = percent + 1;
    Spec spec;
    std::optional<Value> keyed;
    if (at < format.size() && format[at] == '(') {
      int open = 1;
      const size_t begin = ++at;
      for (; at < format.size() && open > 0; ++at) open += format[at] == '(' ? 1 : format[at] == ')' ? -1 : 0;
      if (open > 0) fail("incomplete format key");
      if (!values_.is(Kind::kDict)) fail("format requires a mapping");
      const std::string key = format.substr(begin, at - 1 - begin);
      const Value* found = values_.as<DictObject>().find(key);
      if (!found) fail("KeyError: '{}'", key);
      keyed = *found;
      next_ = arguments_.size();
    }
    bool left = false;
    for (; at < format.size(); ++at) {
      const char c = format[at];
      if (c == '-')
        left = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        spec.zero = true;
      else
        break;
    }
    if (at < format.size() && format[at] == '*') {
      const int64_t width = take_integer();
      if (width < 0) left = true;
      const uint64_t size = width < 0 ? uint64_t{0} - static_cast<uint64_t>(width) : static_cast<uint64_t>(width);
      spec.width = size;
      ++at;
    } else {
      spec.width = parse_count(format, at);
    }
    if (at < format.size() && format[at] == '.') {
      ++at;
      size_t precision = 0;
      if (at < format.size() && format[at] == '*') {
        precision = static_cast<size_t>(std::max<int64_t>(take_integer(), 0));
        ++at;
      } else {
        precision = parse_count(format, at);
      }
      precision_ = precision;
    } else {
      precision_.reset();
    }
    while (at < format.size() && (format[at] == 'h' || format[at] == 'l' || format[at] == 'L')) ++at;
    if (at >= format.size()) fail("incomplete format");
    const char type = format[at++];
    if (type == '%') {
      out_.append("%", origin);
      return at;
    }
    if (left) spec.align = '<';
    const Value value = keyed ? *keyed : take();
    write(value, type, spec, origin, left);
    return at;
  }

  void write(const Value& value, char type, Spec& spec, uint8_t origin, bool left) {
    if (type == 's' || type == 'r' || type == 'a' || type == 'c') {
      StyledText text;
      if (type == 'c') {
        if (value.is_string() && value.text().length == 1) {
          text = value.text();
        } else if (value.is_integer()) {
          const int64_t code = value.as_int();
          if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("%c arg not in range(0x110000)");
          std::string bytes;
          utf8_append(bytes, static_cast<char32_t>(code));
          text = plain_text(std::move(bytes), kContent);
        } else {
          fail("%c requires int or char");
        }
      } else if (type == 's') {
        text = text_.markup ? escape_value(heap_, value).text() : to_str(heap_, value).text();
      } else {
        text = plain_text(repr(heap_, value), kContent);
        if (text_.markup) text = escape_value(heap_, make_string(heap_, std::move(text))).text();
      }
      if (precision_ && type != 'c' && *precision_ < text.length)
        text = slice_text(heap_, text, 0, text.offset_of(*precision_));
      append_padded(out_, text, spec, '>', origin);
      return;
    }
    const std::string_view types = "diuoxXeEfFgG";
    if (types.find(type) == std::string_view::npos) fail("unsupported format character '{}'", type);
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_number()) fail("%{} format: a number is required, not {}", type, type_name(value));
    const uint8_t number_origin = static_cast<uint8_t>(origin | (value.content() ? kContent : kTrusted));
    if (spec.zero && !left) {
      spec.fill = "0";
      spec.align = '=';
    }
    const bool integral = types.find(type) < 6;
    std::string digits, prefix;
    bool negative = is_negative(value);
    if (!integral) {
      digits =
          float_digits(value.as_double(), type,
                       precision_ ? std::optional<int>(checked_precision(*precision_)) : std::nullopt, spec.alternate);
      if (!std::isfinite(value.as_double()) && spec.align == '=') {
        spec.fill = " ";
        spec.align = '>';
      }
    } else {
      Value whole = value;
      if (value.is(Kind::kFloat)) {
        if (type == 'o' || type == 'x' || type == 'X') fail("%{} format: an integer is required, not float", type);
        const double truncated = std::trunc(value.as_double());
        if (!(std::fabs(truncated) < 0x1p63)) fail("the integer needs more than 64 bits");
        whole = Value::integer(static_cast<int64_t>(truncated));
        negative = is_negative(whole);
      }
      const int base = type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
      digits = integer_digits(magnitude_of(whole), base, type == 'X');
      if (precision_) {
        const auto wanted = static_cast<size_t>(checked_precision(*precision_));
        if (digits.size() < wanted) digits.insert(0, wanted - digits.size(), '0');
      }
      if (spec.alternate && base != 10) prefix = base == 8 ? "0o" : type == 'X' ? "0X" : "0x";
    }
    append_number(out_, sign_of(negative, spec.sign), prefix, std::move(digits), spec, number_origin);
  }

  Heap& heap_;
  const StyledText& text_;
  const Value& values_;
  Values arguments_;
  size_t next_ = 0;
  std::optional<size_t> precision_;
  TextBuilder out_;
};

// str.format
// -----------------------------------------------------------------------------------------------------

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t size = utf8_length(text[0]);
    if (text.size() > size && is_align(text[size])) {
      spec.fill = std::string(text.substr(0, size));
      spec.align = text[size];
      at = size + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == 'z') ++at;
  if (at < text.size() && text[at] == '#') spec.alternate = true, ++at;
  if (at < text.size() && text[at] == '0') {
    spec.zero = true;
    ++at;
    if (!spec.align) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = parse_count(text, at);
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) spec.grouping = text[at++];
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (at >= text.size() || text[at] < '0' || text[at] > '9') fail("Format specifier missing precision");
    spec.precision = static_cast<int>(parse_count(text, at));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail("Invalid format specifier '{}'", text);
  return spec;
}

void append_formatted(TextBuilder& out, const Value& value, std::string_view text, uint8_t origin) {
  Heap& heap = out.heap();
  if (text.empty()) return append_str(out, value);
  Spec spec = parse_spec(text);
  if (value.is_string()) {
    if (spec.type != '\0' && spec.type != 's') fail("Unknown format code '{}' for object of type 'str'", spec.type);
    if (spec.sign != '-') fail("Sign not allowed in string format specifier");
    if (spec.align == '=' && !spec.zero) fail("'=' alignment not allowed in string format specifier");
    if (spec.align == '=') spec.align = '<';
    StyledText shown = value.text();
    if (spec.precision && static_cast<size_t>(*spec.precision) < shown.length)
      shown = slice_text(heap, shown, 0, shown.offset_of(static_cast<size_t>(*spec.precision)));
    return append_padded(out, shown, spec, '<', origin);
  }
  if (!value.is_number()) fail("unsupported format string passed to {}.__format__", type_name(value));
  const uint8_t number_origin = static_cast<uint8_t>(origin | (value.content() ? kContent : kTrusted));
  const std::string_view float_types = "eEfFgG%";
  const bool as_float = value.is(Kind::kFloat) || (spec.type && float_types.find(spec.type) != std::string_view::npos);
  std::string digits, prefix;
  size_t every = 3;
  if (as_float) {
    if (spec.type && spec.type != 'n' && float_types.find(spec.type) == std::string_view::npos)
      fail("Unknown format code '{}' for object of type 'float'", spec.type);
    if (spec.precision) checked_precision(static_cast<size_t>(*spec.precision));
    digits = float_digits(value.as_double(), spec.type, spec.precision, spec.alternate);
  } else {
    if (spec.precision) fail("Precision not allowed in integer format specifier");
    int base = 10;
    switch (spec.type) {
      case '\0':
      case 'd':
      case 'n': break;
      case 'b': base = 2; break;
      case 'o': base = 8; break;
      case 'x':
      case 'X': base = 16; break;
      case 'c': {
        const int64_t code = value.as_int();
        if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("%c arg not in range(0x110000)");
        std::string bytes;
        utf8_append(bytes, static_cast<char32_t>(code));
        return append_padded(out, plain_text(std::move(bytes), kContent), spec, '<', origin);
      }
      default: fail("Unknown format code '{}' for object of type 'int'", spec.type);
    }
    digits = integer_digits(magnitude_of(value), base, spec.type == 'X');
    if (base != 10) every = 4;
    if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
  }
  const std::string sign = sign_of(is_negative(value), spec.sign);
  if (spec.grouping) {
    // Zeros that fill up the width are grouped too.
    if (spec.fill == "0" && spec.align == '=') {
      std::string grouped = digits;
      group_digits(grouped, spec.grouping, every);
      while (sign.size() + prefix.size() + grouped.size() < std::min<size_t>(spec.width, 4096)) {
        digits.insert(0, 1, '0');
        grouped = digits;
        group_digits(grouped, spec.grouping, every);
      }
      digits = std::move(grouped);
    } else {
      group_digits(digits, spec.grouping, every);
    }
  }
  append_number(out, sign, prefix, std::move(digits), spec, number_origin);
}

class BraceFormat {
 public:
  BraceFormat(Interpreter& interpreter, bool markup, const CallArguments& arguments)
      : interpreter_(interpreter), heap_(interpreter.heap()), markup_(markup), arguments_(arguments) {}

  // Formats bytes [begin, end) of `text`.
  void run(TextBuilder& out, const StyledText& text, size_t begin, size_t end, int nesting) {
    const std::string& bytes = text.bytes;
    while (begin < end) {
      heap_.step();
      size_t brace = bytes.find_first_of("{}", begin);
      if (brace == std::string::npos || brace >= end) brace = end;
      out.append(text, begin, brace);
      if (brace == end) return;
      if (brace + 1 < end && bytes[brace + 1] == bytes[brace]) {
        out.append(text, brace, brace + 1);
        begin = brace + 2;
        continue;
      }
      if (bytes[brace] == '}') fail("Single '}}' encountered in format string");
      begin = field(out, text, brace, end, nesting);
    }
  }

 private:
  size_t field(TextBuilder& out, const StyledText& text, size_t brace, size_t end, int nesting) {
    if (nesting > 1) fail("Max string recursion exceeded");
    const std::string& bytes = text.bytes;
    size_t at = brace + 1;
    int open = 1;
    size_t close = at;
    for (; close < end; ++close) {
      if (bytes[close] == '{') ++open;
      if (bytes[close] == '}' && --open == 0) break;
    }
    if (open != 0) fail("expected '}}' before end of string");
    size_t name_end = at;
    bool in_index = false;
    for (; name_end < close; ++name_end) {
      const char c = bytes[name_end];
      if (c == '[') in_index = true;
      if (c == ']') in_index = false;
      if (!in_index && (c == '!' || c == ':')) break;
    }
    Value value = lookup(bytes.substr(at, name_end - at));
    at = name_end;
    const uint8_t origin = text.origin_at(brace);
    if (at < close && bytes[at] == '!') {
      if (at + 1 >= close) fail("end of string while looking for conversion specifier");
      const char conversion = bytes[at + 1];
      if (conversion == 's')
        value = to_str(heap_, value);
      else if (conversion == 'r' || conversion == 'a')
        value = make_string(heap_, repr(heap_, value), kContent);
      else
        fail("Unknown conversion specifier '{}'", conversion);
      at += 2;
      if (at < close && bytes[at] != ':') fail("expected ':' after conversion specifier");
    }
    std::string spec;
    if (at < close) {
      TextBuilder inner(heap_);
      run(inner, text, at + 1, close, nesting + 1);
      spec = inner.finish().bytes;
    }
    if (markup_) {
      TextBuilder shown(heap_);
      append_formatted(shown, value, spec, origin);
      StyledText plain = shown.finish();
      plain.markup = value.is_string() && value.text().markup;
      out.append(escape_value(heap_, make_string(heap_, std::move(plain))).text());
    } else {
      append_formatted(out, value, spec, origin);
    }
    return close + 1;
  }

  Value lookup(const std::string& name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    std::string first = name.substr(0, at);
    Value value;
    const bool number =
        !first.empty() && first.size() < 10 && first.find_first_not_of("0123456789") == std::string::npos;
    if (first.empty() || number) {
      if (first.empty() ? manual_ : next_ > 0)
        fail("cannot switch between manual field specification and automatic field numbering");
      const size_t index = number ? static_cast<size_t>(std::stoul(first)) : next_++;
      if (number) manual_ = true;
      if (index >= arguments_.positional.size())
        fail("Replacement index {} out of range for positional args tuple", index);
      value = arguments_.positional[index];
    } else {
      bool found = false;
      for (const auto& [key, candidate] : arguments_.named) {
        if (key != first) continue;
        value = candidate;
        found = true;
      }
      if (!found) fail("KeyError: '{}'", first);
    }
    while (at < name.size()) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) fail("Empty attribute in format string");
        value = interpreter_.attribute(value, name.substr(at + 1, end - at - 1));
        at = end;
      } else if (name[at] == '[') {
        const size_t end = name.find(']', at);
        if (end == std::string::npos || end == at + 1) fail("Missing ']' in format string");
        const std::string key = name.substr(at + 1, end - at - 1);
        const bool index = key.size() < 18 && key.find_first_not_of("0123456789") == std::string::npos;
        value = interpreter_.item(value, index ? Value::integer(std::stoll(key)) : make_string(heap_, key, kTrusted));
        at = end + 1;
      } else {
        fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Interpreter& interpreter_;
  Heap& heap_;
  bool markup_;
  const CallArguments& arguments_;
  size_t next_ = 0;
  bool manual_ = false;
};

}  // namespace

Value percent_format(Heap& heap, const Value& format, const Value& values) {
  return PercentFormat(heap, format, values).run();
}

Value brace_format(Interpreter& interpreter, const Value& format, const CallArguments& arguments) {
  TextBuilder out(interpreter.heap());
  const StyledText& text = format.text();
  BraceFormat(interpreter, text.markup, arguments).run(out, text, 0, text.bytes.size(), 0);
  StyledText result = out.finish();
  result.markup = text.markup;
  return make_string(interpreter.heap(), std::move(result));
}

}  // namespace headrace::text::jinja
