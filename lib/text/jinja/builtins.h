// What a template can call without defining it: filters, tests, functions and methods.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace headrace::text::jinja {

class Interpreter;

// The evaluated arguments of a call.
struct CallArguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments matched to a function's parameters as Python does; an absent one is null.
class BoundArguments {
 public:
  // `names`: the parameters in order; one starting with '/' can only be passed by position. The first
  // `required` must be given. Fails with Python's words for what doesn't match.
  BoundArguments(std::string_view function, const CallArguments& arguments,
                 std::initializer_list<std::string_view> names, size_t required = 0);

  const Value* operator[](size_t index) const { return values_[index]; }

 private:
  std::vector<const Value*> values_;
};

using FilterFunction = Value (*)(Interpreter& interpreter, const Value& input, const CallArguments& arguments);
using TestFunction = bool (*)(Interpreter& interpreter, const Value& input, const CallArguments& arguments);
using MethodFunction = Value (*)(Interpreter& interpreter, const Value& self, const CallArguments& arguments);

struct FilterEntry {
  std::string_view name;
  FilterFunction function;
};
struct TestEntry {
  std::string_view name;
  TestFunction function;
};
struct MethodEntry {
  std::string_view name;
  MethodFunction function;
};

// Null when there's none of that name.
const FilterEntry* find_filter(std::string_view name);
const TestEntry* find_test(std::string_view name);
const MethodEntry* find_string_method(std::string_view name);
const MethodEntry* find_container_method(Kind kind, std::string_view name);
// Whether the method would change a list or dict, which templates may not.
bool is_forbidden_method(Kind kind, std::string_view name);

bool is_global_function(std::string_view name);

// The tables behind find_filter: text and values are apart.
const FilterEntry* find_text_filter(std::string_view name);
const FilterEntry* find_sequence_filter(std::string_view name);

template <class Table>
auto find_entry(const Table& table, std::string_view name) -> decltype(&table[0]) {
  for (const auto& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace headrace::text::jinja
