// object.name and object[key].
#include <algorithm>

#include "text/jinja/interpreter.h"

namespace headrace::text::jinja {

std::optional<Value> Interpreter::python_attribute(const Value& object, const std::string& name) {
  switch (object.kind()) {
    case Kind::kUndefined: fail_undefined(object);
    case Kind::kString:
      if (const MethodEntry* entry = find_string_method(name)) return method(object, *entry);
      return std::nullopt;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      if (object.is(Kind::kTuple) && object.as<SequenceObject>().group) {
        if (name == "grouper") return object.items()[0];
        if (name == "list") return object.items()[1];
      }
      if (const MethodEntry* entry = find_container_method(object.kind(), name)) return method(object, *entry);
      if (is_forbidden_method(object.kind(), name))
        return make_undefined(
            heap_, fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
      return std::nullopt;
    case Kind::kNamespace:
      if (const Value* value = object.as<NamespaceObject>().attributes.find(name)) return *value;
      return std::nullopt;
    case Kind::kLoop: return loop_attribute(object, name);
    case Kind::kCallable: {
      auto& callee = object.as<CallableObject>();
      if (callee.what == CallableObject::What::kMacro && name == "name")
        return make_string(heap_, callee.name, kTrusted);
      if (callee.what == CallableObject::What::kCycler) {
        if (name == "current") return callee.items[callee.next];
        if (name == "next") return callable(CallableObject::What::kCyclerNext, name, object);
        if (name == "reset") return callable(CallableObject::What::kCyclerReset, name, object);
      }
      return std::nullopt;
    }
    default: return std::nullopt;
  }
}

std::optional<Value> Interpreter::python_item(const Value& object, const Value& key) {
  const auto index = [&](size_t length) -> std::optional<size_t> {
    if (!key.is_integer()) return std::nullopt;
    const int64_t at = key.as_int();
    const auto size = static_cast<int64_t>(length);
    if (at >= size || at < -size) return std::nullopt;
    return static_cast<size_t>(at < 0 ? at + size : at);
  };
  switch (object.kind()) {
    case Kind::kUndefined: fail_undefined(object);
    case Kind::kString: {
      const StyledText& text = object.text();
      const auto at = index(text.length);
      if (!at) return std::nullopt;
      if (!text.ascii()) heap_.step(text.bytes.size() / 64);
      const size_t begin = text.offset_of(*at);
      size_t end = begin + 1;
      while (end < text.bytes.size() && (static_cast<uint8_t>(text.bytes[end]) & 0xC0u) == 0x80u) ++end;
      return make_string(heap_, slice_text(heap_, text, begin, end));
    }
    case Kind::kList:
    case Kind::kTuple: {
      const auto at = index(object.items().size());
      return at ? std::optional<Value>(object.items()[*at]) : std::nullopt;
    }
    case Kind::kRange: {
      const auto& range = object.as<RangeObject>();
      const auto at = index(range.length());
      if (!at) return std::nullopt;
      return Value::integer(range.start + static_cast<int64_t>(*at) * range.step);
    }
    case Kind::kDict: {
      if (key.is_string()) {
        const Value* value = object.as<DictObject>().find(key.bytes());
        return value ? std::optional<Value>(*value) : std::nullopt;
      }
      if (!encode_key(key)) return std::nullopt;
      const Value* value = object.as<DictObject>().find(key);
      return value ? std::optional<Value>(*value) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

namespace {

std::string describe_object(const Value& object) {
  return object.is_none() ? "'None'" : fmt::format("'{} object'", type_name(object));
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (auto value = python_attribute(object, name)) return *value;
  if (object.is(Kind::kDict))
    if (const Value* value = object.as<DictObject>().find(name)) return *value;
  return make_undefined(heap_, fmt::format("{} has no attribute '{}'", describe_object(object), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (auto value = python_item(object, key)) return *value;
  if (key.is_string()) {
    if (auto value = python_attribute(object, key.bytes())) return *value;
    return make_undefined(heap_, fmt::format("{} has no attribute '{}'", describe_object(object), key.bytes()));
  }
  if (key.is_undefined()) fail_undefined(key);
  return make_undefined(heap_, fmt::format("{} has no element {}", describe_object(object),
                                           key.is_number() ? repr(heap_, key) : std::string(type_name(key))));
}

Value Interpreter::attribute_path(const Value& object, const Value& path, const Value* fallback) {
  Value value = object;
  const auto step = [&](const Value& key) {
    heap_.step();
    value = item(value, key);
    if (fallback && value.is_undefined()) value = *fallback;
  };
  if (path.is_none()) return value;
  if (!path.is_string()) {
    if (!path.is_integer()) fail("an attribute's name must be a string or an integer, not '{}'", type_name(path));
    step(path);
    return value;
  }
  const std::string& names = path.bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string part = names.substr(begin, end - begin);
    const bool number = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
    step(number ? Value::integer(std::stoll(part)) : make_string(heap_, part, kTrusted));
    begin = end + 1;
  }
  return value;
}

}  // namespace headrace::text::jinja
