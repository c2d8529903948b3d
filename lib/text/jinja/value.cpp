#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

// From this many entries on, a dict has an index.
constexpr size_t kIndexedEntries = 9;

template <class T>
std::shared_ptr<T> charged(Heap& heap, size_t bytes) {
  heap.step();
  heap.charge(bytes);
  std::shared_ptr<T> object;
  try {
    object = std::make_shared<T>();
  } catch (...) {
    heap.release(bytes);
    throw;
  }
  object->heap = &heap;
  object->charged = bytes;
  return object;
}

int depth_of(const Values& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth;
}

}  // namespace

Value Value::boolean(bool value, bool content) {
  Value out;
  out.kind_ = Kind::kBool;
  out.content_ = content;
  out.scalar_.integer = value;
  return out;
}

Value Value::integer(int64_t value, bool content) {
  Value out;
  out.kind_ = Kind::kInt;
  out.content_ = content;
  out.scalar_.integer = value;
  return out;
}

Value Value::big_uint(uint64_t value, bool content) {
  Value out;
  out.kind_ = Kind::kBigUint;
  out.content_ = content;
  out.scalar_.integer = static_cast<int64_t>(value);
  return out;
}

Value Value::number(double value, bool content) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.content_ = content;
  out.scalar_.number = value;
  return out;
}

Value Value::object(Kind kind, std::shared_ptr<Object> object) {
  Value out;
  out.kind_ = kind;
  out.object_ = std::move(object);
  return out;
}

Value Value::with_content(bool content) const {
  Value out = *this;
  out.content_ = content;
  return out;
}

double Value::as_double() const {
  if (kind_ == Kind::kFloat) return scalar_.number;
  if (kind_ == Kind::kBigUint) return static_cast<double>(as_big_uint());
  return static_cast<double>(scalar_.integer);
}

const StyledText& Value::text() const { return as<StringObject>().text; }
const Values& Value::items() const { return as<SequenceObject>().items; }

uint64_t RangeObject::length() const {
  // In unsigned arithmetic, as the distance of two int64 may not fit one.
  if (step > 0) {
    if (start >= stop) return 0;
    return (static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) / static_cast<uint64_t>(step) + 1;
  }
  if (start <= stop) return 0;
  return (static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) /
             (uint64_t{0} - static_cast<uint64_t>(step)) +
         1;
}

std::optional<std::string> encode_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kNone: return "0";
    case Kind::kBool:
    case Kind::kInt: return fmt::format("n{}", key.as_int());
    case Kind::kBigUint: return fmt::format("n{}", key.as_big_uint());
    case Kind::kFloat: {
      const double value = key.as_double();
      if (value == std::trunc(value) && std::fabs(value) < 0x1p63)
        return fmt::format("n{}", static_cast<int64_t>(value));
      return "f" + float_repr(value);
    }
    case Kind::kString: return "s" + key.bytes();
    case Kind::kTuple: {
      std::string out = "t";
      for (const Value& item : key.items()) {
        const auto encoded = encode_key(item);
        if (!encoded) return std::nullopt;
        out += fmt::format("{}:{}", encoded->size(), *encoded);
        if (out.size() > (size_t{1} << 20)) exhausted("a key is too long");
      }
      return out;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView: return std::nullopt;
    case Kind::kUndefined: return "u";
    case Kind::kRange: {
      const auto& range = key.as<RangeObject>();
      return fmt::format("r{}:{}:{}", range.start, range.stop, range.step);
    }
    default: return fmt::format("p{}", reinterpret_cast<uintptr_t>(key.identity()));
  }
}

std::optional<size_t> DictObject::locate(std::string_view encoded) const {
  if (!index_.empty()) {
    const auto found = index_.find(std::string(encoded));
    return found == index_.end() ? std::nullopt : std::optional<size_t>(found->second);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const Value& key = entries[i].first;
    if (key.is_string()) {
      if (encoded[0] == 's' && encoded.substr(1) == key.bytes()) return i;
    } else if (*encode_key(key) == encoded) {
      return i;
    }
  }
  return std::nullopt;
}

const Value* DictObject::find(const Value& key) const {
  const auto encoded = encode_key(key);
  if (!encoded) fail("unhashable type: '{}'", type_name(key));
  const auto at = locate(*encoded);
  return at ? &entries[*at].second : nullptr;
}

const Value* DictObject::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries)
      if (name.is_string() && name.bytes() == key) return &value;
    return nullptr;
  }
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries[found->second].second;
}

void DictObject::set(const Value& key, Value value) {
  auto encoded = encode_key(key);
  if (!encoded) fail("unhashable type: '{}'", type_name(key));
  if (const auto at = locate(*encoded)) {
    entries[*at].second = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
  if (!index_.empty()) {
    index_.emplace(std::move(*encoded), entries.size() - 1);
  } else if (entries.size() >= kIndexedEntries) {
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(*encode_key(entries[i].first), i);
  }
}

void register_depth(Object& object, int depth) {
  if (depth > kMaxNesting) exhausted("values nest deeper than {} levels", kMaxNesting);
  object.depth = depth;
}

Value make_undefined(Heap& heap, std::string message) {
  auto object = charged<UndefinedObject>(heap, sizeof(UndefinedObject) + message.size());
  object->message = std::move(message);
  return Value::object(Kind::kUndefined, std::move(object));
}

Value make_string(Heap& heap, StyledText text) {
  const size_t size = sizeof(StringObject) + text.bytes.capacity() + text.runs.capacity() * sizeof(Run);
  heap.check_string(text.bytes.size());
  auto object = charged<StringObject>(heap, size);
  object->text = std::move(text);
  return Value::object(Kind::kString, std::move(object));
}

Value make_string(Heap& heap, std::string_view bytes, uint8_t origin) {
  heap.check_string(bytes.size());
  return make_string(heap, plain_text(std::string(bytes), origin));
}

Value make_constant(std::string bytes) {
  auto object = std::make_shared<StringObject>();
  object->text = plain_text(std::move(bytes), kTrusted);
  return Value::object(Kind::kString, std::move(object));
}

Value make_sequence(Heap& heap, Kind kind, Values items) {
  heap.step(items.size() / 8);
  auto object = charged<SequenceObject>(heap, sizeof(SequenceObject) + items.capacity() * sizeof(Value));
  register_depth(*object, depth_of(items) + 1);
  object->items = std::move(items);
  return Value::object(kind, std::move(object));
}

Value make_view(Heap& heap, const char* name, Values items) {
  Value view = make_sequence(heap, Kind::kView, std::move(items));
  view.as<SequenceObject>().view_name = name;
  return view;
}

Value make_generator(Heap& heap, Values items) {
  auto object = charged<GeneratorObject>(heap, sizeof(GeneratorObject) + items.capacity() * sizeof(Value));
  register_depth(*object, depth_of(items) + 1);
  object->items = std::move(items);
  return Value::object(Kind::kGenerator, std::move(object));
}

Value make_dict(Heap& heap, std::shared_ptr<DictObject> dict) {
  size_t size = sizeof(DictObject) + dict->entries.capacity() * 2 * sizeof(Value);
  if (dict->entries.size() >= kIndexedEntries) size += dict->entries.size() * 64;
  heap.step(1 + dict->entries.size() / 8);
  heap.charge(size);
  dict->heap = &heap;
  dict->charged = size;
  int depth = 0;
  for (const auto& [key, value] : dict->entries) depth = std::max({depth, key.depth(), value.depth()});
  register_depth(*dict, depth + 1);
  return Value::object(Kind::kDict, std::move(dict));
}

namespace {

Value from_json_at(Heap& heap, const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxNesting - 8) exhausted("the JSON nests deeper than {} levels", kMaxNesting - 8);
  const auto text = [&](const std::string& bytes) {
    if (const size_t bad = utf8_invalid_offset(bytes); bad != std::string::npos)
      fail("a text is not valid UTF-8 at its byte {}", bad);
    return make_string(heap, bytes, kContent);
  };
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null: return Value().with_content(true);
    case nlohmann::ordered_json::value_t::boolean: return Value::boolean(json.get<bool>(), true);
    case nlohmann::ordered_json::value_t::number_integer: return Value::integer(json.get<int64_t>(), true);
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      return value > INT64_MAX ? Value::big_uint(value, true) : Value::integer(static_cast<int64_t>(value), true);
    }
    case nlohmann::ordered_json::value_t::number_float: return Value::number(json.get<double>(), true);
    case nlohmann::ordered_json::value_t::string: return text(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json_at(heap, item, depth + 1));
      return make_sequence(heap, Kind::kList, std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      auto dict = std::make_shared<DictObject>();
      dict->entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) dict->set(text(key), from_json_at(heap, item, depth + 1));
      return make_dict(heap, std::move(dict));
    }
    default: fail("JSON of this kind can't be passed to a template");
  }
}

}  // namespace

Value from_json(Heap& heap, const nlohmann::ordered_json& json) { return from_json_at(heap, json, 0); }

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigUint: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.text().markup ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView: return value.as<SequenceObject>().view_name;
    case Kind::kGenerator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCallable: return "function";
  }
  return "object";
}

bool truthy(Heap& heap, const Value& value) {
  heap.step();
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_double() != 0;
    case Kind::kString: return !value.bytes().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return !value.items().empty();
    case Kind::kDict: return !value.as<DictObject>().entries.empty();
    case Kind::kRange: return value.as<RangeObject>().length() != 0;
    default: return true;
  }
}

namespace {

std::strong_ordering order_exact(long double a, long double b) {
  return a < b ? std::strong_ordering::less : a > b ? std::strong_ordering::greater : std::strong_ordering::equal;
}

// Numbers compare by value whatever their type; x87's 64-bit significand holds every int64, uint64 and
// double.
std::optional<int> order_numbers(const Value& a, const Value& b) {
  const auto widen = [](const Value& value) -> long double {
    if (value.is(Kind::kFloat)) return value.as_double();
    if (value.is(Kind::kBigUint)) return static_cast<long double>(value.as_big_uint());
    return static_cast<long double>(value.as_int());
  };
  if ((a.is(Kind::kFloat) && std::isnan(a.as_double())) || (b.is(Kind::kFloat) && std::isnan(b.as_double())))
    return std::nullopt;
  const auto result = order_exact(widen(a), widen(b));
  return result < 0 ? -1 : result > 0 ? 1 : 0;
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: heap.step(std::min(a.bytes().size(), b.bytes().size()) / 64); return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.identity() == b.identity()) return true;
      const Values& left = a.items();
      const Values& right = b.items();
      if (left.size() != right.size()) return false;
      heap.check_stack();
      for (size_t i = 0; i < left.size(); ++i)
        if (!equal(heap, left[i], right[i])) return false;
      return true;
    }
    case Kind::kDict: {
      if (a.identity() == b.identity()) return true;
      const auto& left = a.as<DictObject>();
      const auto& right = b.as<DictObject>();
      if (left.entries.size() != right.entries.size()) return false;
      heap.check_stack();
      for (const auto& [key, value] : left.entries) {
        const Value* other = right.find(key);
        if (!other || !equal(heap, value, *other)) return false;
      }
      return true;
    }
    case Kind::kRange: {
      const auto& left = a.as<RangeObject>();
      const auto& right = b.as<RangeObject>();
      const uint64_t length = left.length();
      return length == right.length() && (length == 0 || left.start == right.start) &&
             (length <= 1 || left.step == right.step);
    }
    default: return a.identity() == b.identity();
  }
}

std::optional<int> order(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  if (a.is_undefined()) fail("{}", a.as<UndefinedObject>().message);
  if (b.is_undefined()) fail("{}", b.as<UndefinedObject>().message);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    heap.step(std::min(a.bytes().size(), b.bytes().size()) / 64);
    // Byte order of UTF-8 is code point order.
    const int result = a.bytes().compare(b.bytes());
    return result < 0 ? -1 : result > 0 ? 1 : 0;
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    heap.check_stack();
    const Values& left = a.items();
    const Values& right = b.items();
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i)
      if (!equal(heap, left[i], right[i])) return order(heap, left[i], right[i]);
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  fail("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

std::optional<size_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return value.text().length;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return value.items().size();
    case Kind::kDict: return value.as<DictObject>().entries.size();
    case Kind::kRange: return value.as<RangeObject>().length();
    default: return std::nullopt;
  }
}

bool iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kGenerator:
    case Kind::kLoop: return true;
    default: return false;
  }
}

Values iterate(Heap& heap, const Value& value) {
  Values out;
  switch (value.kind()) {
    case Kind::kUndefined: return out;
    case Kind::kString: {
      const StyledText& text = value.text();
      heap.step(text.length);
      out.reserve(text.length);
      for (size_t at = 0; at < text.bytes.size();) {
        const size_t size = utf8_length(text.bytes[at]);
        out.push_back(make_string(heap, slice_text(heap, text, at, at + size)));
        at += size;
      }
      return out;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: heap.step(value.items().size()); return value.items();
    case Kind::kDict: {
      const auto& entries = value.as<DictObject>().entries;
      heap.step(entries.size());
      out.reserve(entries.size());
      for (const auto& [key, item] : entries) out.push_back(key);
      return out;
    }
    case Kind::kRange: {
      const auto& range = value.as<RangeObject>();
      const uint64_t length = range.length();
      heap.step(length);
      out.reserve(length);
      for (uint64_t i = 0; i < length; ++i)
        out.push_back(Value::integer(range.start + static_cast<int64_t>(i) * range.step));
      return out;
    }
    case Kind::kGenerator: {
      auto& generator = value.as<GeneratorObject>();
      heap.step(generator.items.size());
      out.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.next), generator.items.end());
      generator.next = generator.items.size();
      return out;
    }
    default: fail("'{}' object is not iterable", type_name(value));
  }
}

}  // namespace headrace::text::jinja
