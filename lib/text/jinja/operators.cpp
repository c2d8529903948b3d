// Arithmetic, membership and slices with Python's rules. Integers have 64 bits: what doesn't fit is an error.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "text/jinja/interpreter.h"

namespace headrace::text::jinja {

void fail_undefined(const Value& value) { fail("{}", value.as<UndefinedObject>().message); }

Value escape_value(Heap& heap, const Value& value) {
  if (value.is_string() && value.text().markup) return value;
  const Value text_value = to_str(heap, value);
  const StyledText& text = text_value.text();
  TextBuilder out(heap);
  size_t begin = 0;
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    const std::string_view with = c == '&'    ? "&amp;"
                                  : c == '<'  ? "&lt;"
                                  : c == '>'  ? "&gt;"
                                  : c == '\'' ? "&#39;"
                                  : c == '"'  ? "&#34;"
                                              : "";
    if (with.empty()) continue;
    out.append(text, begin, i);
    out.append(with, text.origin_at(i));
    begin = i + 1;
  }
  out.append(text, begin, text.bytes.size());
  StyledText escaped = out.finish();
  escaped.markup = true;
  return make_string(heap, std::move(escaped));
}

namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void unsupported_operands(BinaryOp op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", kSymbols[static_cast<size_t>(op)], type_name(left),
       type_name(right));
}

int64_t fitted(std::optional<int64_t> value) {
  if (!value) fail("the integer needs more than 64 bits");
  return *value;
}

Value integer_power(int64_t base, int64_t exponent, bool content) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)), content);
  }
  int64_t result = 1;
  for (;;) {
    if (exponent & 1) result = fitted(checked_mul(result, base));
    exponent >>= 1;
    if (exponent == 0) return Value::integer(result, content);
    base = fitted(checked_mul(base, base));
  }
}

Value integer_operation(BinaryOp op, int64_t a, int64_t b, bool content) {
  switch (op) {
    case BinaryOp::kAdd: return Value::integer(fitted(checked_add(a, b)), content);
    case BinaryOp::kSub: {
      int64_t out = 0;
      if (__builtin_sub_overflow(a, b, &out)) fitted(std::nullopt);
      return Value::integer(out, content);
    }
    case BinaryOp::kMul: return Value::integer(fitted(checked_mul(a, b)), content);
    case BinaryOp::kDiv:
      if (b == 0) fail("division by zero");
      return Value::number(static_cast<double>(a) / static_cast<double>(b), content);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) fail("integer division or modulo by zero");
      if (b == -1) {
        if (op == BinaryOp::kMod) return Value::integer(0, content);
        if (a == INT64_MIN) fitted(std::nullopt);
        return Value::integer(-a, content);
      }
      int64_t quotient = a / b;
      int64_t rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        --quotient;
        rest += b;
      }
      return Value::integer(op == BinaryOp::kMod ? rest : quotient, content);
    }
    case BinaryOp::kPow: return integer_power(a, b, content);
  }
  fail("unknown operator");
}

Value float_operation(BinaryOp op, double a, double b, bool content) {
  switch (op) {
    case BinaryOp::kAdd: return Value::number(a + b, content);
    case BinaryOp::kSub: return Value::number(a - b, content);
    case BinaryOp::kMul: return Value::number(a * b, content);
    case BinaryOp::kDiv:
      if (b == 0) fail("float division by zero");
      return Value::number(a / b, content);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) fail("float floor division or modulo by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
          rest += b;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, b);
      }
      if (op == BinaryOp::kMod) return Value::number(rest, content);
      if (quotient == 0) return Value::number(std::copysign(0.0, a / b), content);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return Value::number(floored, content);
    }
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::trunc(b)) fail("complex numbers are not supported");
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("Numerical result out of range");
      return Value::number(result, content);
    }
  }
  fail("unknown operator");
}

Value repeated(Heap& heap, const Value& what, int64_t times) {
  const uint64_t count = times < 0 ? 0 : static_cast<uint64_t>(times);
  if (what.is_string()) {
    const StyledText& text = what.text();
    TextBuilder out(heap);
    if (!text.bytes.empty() && count > heap.limits().max_string_bytes / text.bytes.size()) heap.check_string(SIZE_MAX);
    heap.step(count);
    if (!text.bytes.empty())
      for (uint64_t i = 0; i < count; ++i) out.append(text);
    StyledText result = out.finish();
    result.markup = text.markup;
    return make_string(heap, std::move(result));
  }
  const Values& items = what.items();
  Values out;
  if (!items.empty()) {
    const auto total = checked_mul<uint64_t>(items.size(), count);
    heap.check_items(total ? *total : UINT64_MAX);
    heap.step(*total);
    out.reserve(*total);
    for (uint64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return make_sequence(heap, what.kind(), std::move(out));
}

Value added(Heap& heap, const Value& left, const Value& right) {
  if (left.is_string()) {
    if (!right.is_string()) fail("can only concatenate str (not \"{}\") to str", type_name(right));
    const bool markup = left.text().markup || right.text().markup;
    TextBuilder out(heap);
    out.append(markup ? escape_value(heap, left).text() : left.text());
    out.append(markup ? escape_value(heap, right).text() : right.text());
    StyledText text = out.finish();
    text.markup = markup;
    return make_string(heap, std::move(text));
  }
  if (left.is_sequence()) {
    if (right.kind() != left.kind())
      fail("can only concatenate {0} (not \"{1}\") to {0}", type_name(left), type_name(right));
    const Values& head = left.items();
    const Values& tail = right.items();
    heap.check_items(head.size() + tail.size());
    heap.step((head.size() + tail.size()) / 8);
    Values items;
    items.reserve(head.size() + tail.size());
    items.insert(items.end(), head.begin(), head.end());
    items.insert(items.end(), tail.begin(), tail.end());
    return make_sequence(heap, left.kind(), std::move(items));
  }
  unsupported_operands(BinaryOp::kAdd, left, right);
}

}  // namespace

Value binary_operation(Heap& heap, BinaryOp op, const Value& left, const Value& right) {
  if (op == BinaryOp::kMod && left.is_string()) return percent_format(heap, left, right);
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (left.is_number() && right.is_number()) {
    const bool content = left.content() || right.content();
    if (left.is(Kind::kFloat) || right.is(Kind::kFloat))
      return float_operation(op, left.as_double(), right.as_double(), content);
    if (left.is(Kind::kBigUint) || right.is(Kind::kBigUint)) fitted(std::nullopt);
    return integer_operation(op, left.as_int(), right.as_int(), content);
  }
  if (op == BinaryOp::kAdd) return added(heap, left, right);
  if (op == BinaryOp::kMul) {
    if ((left.is_string() || left.is_sequence()) && right.is_integer()) return repeated(heap, left, right.as_int());
    if ((right.is_string() || right.is_sequence()) && left.is_integer()) return repeated(heap, right, left.as_int());
  }
  unsupported_operands(op, left, right);
}

Value negate(Heap&, const Value& value, bool minus) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) {
    if (!minus) return Value::integer(value.as_int(), value.content());
    if (value.as_int() == INT64_MIN) fitted(std::nullopt);
    return Value::integer(-value.as_int(), value.content());
  }
  if (value.is(Kind::kFloat)) return minus ? Value::number(-value.as_double(), value.content()) : value;
  if (value.is(Kind::kBigUint)) {
    if (minus) fitted(std::nullopt);
    return value;
  }
  fail("bad operand type for unary {}: '{}'", minus ? '-' : '+', type_name(value));
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined: return false;
    case Kind::kString:
      if (!item.is_string()) fail("'in <string>' requires string as left operand, not {}", type_name(item));
      heap.step(container.bytes().size() / 16);
      return container.bytes().find(item.bytes()) != std::string::npos;
    case Kind::kDict: return container.as<DictObject>().find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      for (const Value& other : container.items())
        if (equal(heap, item, other)) return true;
      return false;
    case Kind::kRange:
      for (const Value& other : iterate(heap, container))
        if (equal(heap, item, other)) return true;
      return false;
    case Kind::kGenerator: {
      auto& generator = container.as<GeneratorObject>();
      while (generator.next < generator.items.size())
        if (equal(heap, item, generator.items[generator.next++])) return true;
      return false;
    }
    default: fail("argument of type '{}' is not iterable", type_name(container));
  }
}

Value slice_value(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) fail_undefined(object);
  for (const Value* bound : {&start, &stop, &step}) {
    if (bound->is_undefined()) fail_undefined(*bound);
    if (!bound->is_none() && !bound->is_integer())
      fail("slice indices must be integers or None, not {}", type_name(*bound));
  }
  const auto length = length_of(object);
  if (!length || object.is(Kind::kDict) || object.is(Kind::kView))
    fail("'{}' object is not subscriptable with a slice", type_name(object));
  const auto size = static_cast<int64_t>(*length);
  const int64_t by = step.is_none() ? 1 : step.as_int();
  if (by == 0) fail("slice step cannot be zero");
  // Bounds are clipped as Python's slice.indices clips them.
  const int64_t low = by < 0 ? -1 : 0;
  const int64_t high = by < 0 ? size - 1 : size;
  const auto clip = [&](const Value& bound, int64_t absent) {
    if (bound.is_none()) return absent;
    int64_t at = bound.as_int();
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const int64_t from = clip(start, by < 0 ? high : low);
  const int64_t to = clip(stop, by < 0 ? low : high);
  RangeObject indices;
  indices.start = from;
  indices.stop = to;
  indices.step = by;
  const uint64_t count = indices.length();
  const auto at = [&](uint64_t i) { return from + static_cast<int64_t>(i) * by; };
  heap.step(count / 4 + 1);
  if (object.is(Kind::kRange)) {
    const auto& range = object.as<RangeObject>();
    auto out = std::make_shared<RangeObject>();
    // Steps stay small: a range has at most 100000 elements, so a huge step leaves at most one of them.
    out->step = count > 1 ? range.step * by : 1;
    out->start = range.start + from * range.step;
    out->stop = count == 0 ? out->start : range.start + at(count - 1) * range.step + (out->step > 0 ? 1 : -1);
    return Value::object(Kind::kRange, std::move(out));
  }
  if (!object.is_string()) {
    Values items;
    items.reserve(count);
    for (uint64_t i = 0; i < count; ++i) items.push_back(object.items()[static_cast<size_t>(at(i))]);
    return make_sequence(heap, object.kind(), std::move(items));
  }
  const StyledText& text = object.text();
  if (by == 1 || count == 0) {
    heap.step(text.ascii() ? 0 : text.bytes.size() / 64);
    const size_t begin = text.offset_of(static_cast<size_t>(count == 0 ? 0 : from));
    const size_t end = count == 0 ? begin : text.offset_of(static_cast<size_t>(to));
    return make_string(heap, slice_text(heap, text, begin, end));
  }
  std::vector<uint32_t> offsets;
  offsets.reserve(text.length + 1);
  for (size_t i = 0; i < text.bytes.size(); ++i)
    if ((static_cast<uint8_t>(text.bytes[i]) & 0xC0u) != 0x80u) offsets.push_back(static_cast<uint32_t>(i));
  offsets.push_back(static_cast<uint32_t>(text.bytes.size()));
  heap.step(text.length / 16);
  TextBuilder out(heap);
  for (uint64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(at(i));
    out.append(text, offsets[index], offsets[index + 1]);
  }
  StyledText result = out.finish();
  result.markup = text.markup;
  return make_string(heap, std::move(result));
}

}  // namespace headrace::text::jinja
