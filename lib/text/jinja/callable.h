// Values that can be called, and the loop variable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace headrace::text::jinja {

// Variables of one scope. Scopes that a macro captures live until the rendering ends.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;
  bool captured = false;

  Value* find(int symbol) {
    for (auto& [name, value] : variables)
      if (name == symbol) return &value;
    return nullptr;
  }
  void set(int symbol, Value value) {
    if (Value* old = find(symbol)) {
      *old = std::move(value);
    } else {
      variables.emplace_back(symbol, std::move(value));
    }
  }
};

struct CallableObject : Object {
  enum class What : uint8_t {
    kMacro,
    kFunction,
    kMethod,
    kLoop,
    kLoopCycle,
    kLoopChanged,
    kCycler,
    kCyclerNext,
    kCyclerReset,
    kJoiner
  };
  What what = What::kFunction;
  std::string name;
  // kMacro: its definition (a macro, or a call block's body as `caller`) and scope.
  const Stmt* macro = nullptr;
  std::shared_ptr<Scope> scope;
  // kMethod, kLoop*, kCycler*: the object it belongs to.
  Value self;
  const MethodEntry* method = nullptr;
  // kCycler, kJoiner.
  Values items;
  size_t next = 0;
};

// The variable `loop`. Elements come one at a time, since a loop's filter may see what its body did before.
struct LoopObject : Object {
  const Stmt* statement = nullptr;
  std::shared_ptr<Scope> scope;  // that the loop stands in, for recursive calls and the filter
  Values source;
  size_t next_source = 0;
  bool filtered = false;
  std::optional<Value> current, previous, after;
  std::optional<Values> last_changed;
  int64_t index0 = -1;
  std::optional<int64_t> length;
  int64_t depth0 = 0;
};

// What Python prints for a macro or loop, without an address; nothing for others.
std::optional<std::string> printed_callable(const Value& value);

}  // namespace headrace::text::jinja
