// The values of the template language, which are Python's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/heap.h"
#include "text/jinja/styled_text.h"

namespace headrace::text::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigUint,  // a caller's integer in [2^63, 2^64): it can be printed and compared, not reckoned with
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,       // dict.items(), .keys(), .values()
  kGenerator,  // a sequence that can be walked once, as map and select make it
  kNamespace,
  kLoop,
  kCallable,  // macros, functions, methods, cycler, joiner
};

// Base of what lives on the heap; gives its charge back when it dies.
struct Object {
  virtual ~Object() {
    if (heap) heap->release(charged);
  }
  Heap* heap = nullptr;
  size_t charged = 0;
  int depth = 1;  // nesting of containers; bounded, so that recursion over values is bounded
};

class Value;
using Values = std::vector<Value>;

class Value {
 public:
  Value() = default;  // None
  static Value boolean(bool value, bool content = false);
  static Value integer(int64_t value, bool content = false);
  static Value big_uint(uint64_t value, bool content = false);
  static Value number(double value, bool content = false);
  static Value object(Kind kind, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  // Python's int includes bool.
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat || kind_ == Kind::kBigUint; }

  bool as_bool() const { return scalar_.integer != 0; }
  int64_t as_int() const { return scalar_.integer; }  // of kInt and kBool
  uint64_t as_big_uint() const { return static_cast<uint64_t>(scalar_.integer); }
  double as_double() const;  // of any number
  // Whether a number or truth value came from a caller.
  bool content() const { return content_; }
  Value with_content(bool content) const;

  const StyledText& text() const;
  const std::string& bytes() const { return text().bytes; }
  const Values& items() const;  // of list, tuple and view
  template <class T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const Object* identity() const { return object_.get(); }
  int depth() const { return object_ ? object_->depth : 0; }

 private:
  Kind kind_ = Kind::kNone;
  bool content_ = false;
  union {
    int64_t integer;
    double number;
  } scalar_ = {0};
  std::shared_ptr<Object> object_;
};

struct UndefinedObject : Object {
  std::string message;  // what to say when it's used
};

struct StringObject : Object {
  StyledText text;
};

struct SequenceObject : Object {
  Values items;
  bool group = false;          // a (grouper, list) pair of the filter groupby
  const char* view_name = "";  // of a view: dict_items, dict_keys, dict_values
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1;
  uint64_t length() const;
};

struct GeneratorObject : Object {
  Values items;
  size_t next = 0;
};

// Insertion-ordered, with Python's key equality (1 == 1.0 == True).
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;

  const Value* find(const Value& key) const;  // null if absent; the key must be hashable
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);

 private:
  std::optional<size_t> locate(std::string_view encoded) const;
  std::unordered_map<std::string, size_t> index_;  // from encoded keys, once there are many
};

struct NamespaceObject : Object {
  DictObject attributes;
};

// A key's encoding, equal exactly for keys that are equal in Python; nothing for an unhashable value.
std::optional<std::string> encode_key(const Value& key);

// Makers; each charges the heap.
Value make_undefined(Heap& heap, std::string message);
Value make_string(Heap& heap, StyledText text);
Value make_string(Heap& heap, std::string_view bytes, uint8_t origin);
Value make_sequence(Heap& heap, Kind kind, Values items);  // kList, kTuple
Value make_view(Heap& heap, const char* name, Values items);
Value make_generator(Heap& heap, Values items);
Value make_dict(Heap& heap, std::shared_ptr<DictObject> dict);  // computes depth and charge
// A string constant that belongs to the parsed template and not to one rendering.
Value make_constant(std::string bytes);

// A caller's JSON. Fails on invalid UTF-8 and on nesting over kMaxNesting.
Value from_json(Heap& heap, const nlohmann::ordered_json& json);

inline constexpr int kMaxNesting = 256;
void register_depth(Object& object, int depth);

// "str", "int", "dict", ... as Python names the type, for messages.
std::string_view type_name(const Value& value);

bool truthy(Heap& heap, const Value& value);
bool equal(Heap& heap, const Value& a, const Value& b);
// Three-way order of Python's `<`; fails for types that have none. NaN yields nothing.
std::optional<int> order(Heap& heap, const Value& a, const Value& b);
// len(value), or nothing where Python raises a TypeError.
std::optional<size_t> length_of(const Value& value);
// The elements that `for x in value` visits; fails on what can't be iterated. Uses up a generator.
Values iterate(Heap& heap, const Value& value);
bool iterable(const Value& value);

// str(value) and repr(value).
Value to_str(Heap& heap, const Value& value);
std::string repr(Heap& heap, const Value& value);
void append_str(TextBuilder& out, const Value& value);
std::string float_repr(double value);
std::string string_repr(std::string_view bytes);

}  // namespace headrace::text::jinja
