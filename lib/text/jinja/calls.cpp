// What a template calls: macros, functions, methods, and the callables of `loop`, cycler and joiner.
#include "text/jinja/interpreter.h"

#include <utility>

#include "text/jinja/interpreter_guards.h"

namespace headrace::text::jinja {

Value Interpreter::callable(CallableObject::What what, std::string name, Value self) {
  heap_.step();
  heap_.charge(sizeof(CallableObject));
  auto object = std::make_shared<CallableObject>();
  object->heap = &heap_;
  object->charged = sizeof(CallableObject);
  object->what = what;
  object->name = std::move(name);
  register_depth(*object, self.depth() + 1);
  object->self = std::move(self);
  return Value::object(Kind::kCallable, std::move(object));
}

Value Interpreter::method(const Value& self, const MethodEntry& entry) {
  Value value = callable(CallableObject::What::kMethod, std::string(entry.name), self);
  value.as<CallableObject>().method = &entry;
  return value;
}

Value Interpreter::make_macro(const Stmt& stmt, std::string name) {
  if (!scope_->captured) {
    scope_->captured = true;
    heap_.charge(256);
    captured_scopes_.push_back(scope_);
  }
  Value value = callable(CallableObject::What::kMacro, std::move(name), Value());
  value.as<CallableObject>().macro = &stmt;
  value.as<CallableObject>().scope = scope_;
  return value;
}

Value Interpreter::call_macro(const CallableObject& macro, const CallArguments& arguments) {
  const Entered entered(*this);
  const Stmt& stmt = *macro.macro;
  const std::string& name = macro.name;
  auto scope = inner_scope(macro.scope);
  auto named = arguments.named;
  const auto take = [&](std::string_view wanted) -> std::optional<Value> {
    for (auto entry = named.begin(); entry != named.end(); ++entry) {
      if (entry->first != wanted) continue;
      Value value = std::move(entry->second);
      named.erase(entry);
      return value;
    }
    return std::nullopt;
  };

  const Swapped<std::shared_ptr<Scope>> inner(scope_, scope);
  const size_t given = std::min(arguments.positional.size(), stmt.parameters.size());
  bool has_caller = false;
  std::vector<std::optional<Value>> bound(stmt.parameters.size());
  for (size_t i = 0; i < stmt.parameters.size(); ++i) {
    if (i < given) {
      bound[i] = arguments.positional[i];
    } else {
      bound[i] = take(stmt.parameters[i].name);
      if (stmt.parameters[i].name == "caller") has_caller = true;
    }
  }
  if (given == stmt.parameters.size()) has_caller = stmt.explicit_caller;
  for (size_t i = 0; i < stmt.parameters.size(); ++i) {
    const Parameter& parameter = stmt.parameters[i];
    if (bound[i]) {
      scope->set(parameter.symbol, std::move(*bound[i]));
    } else if (parameter.fallback) {
      scope->set(parameter.symbol, eval(*parameter.fallback));
    } else {
      scope->set(parameter.symbol,
                 make_undefined(heap_, fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  if ((stmt.uses_caller || stmt.explicit_caller) && !has_caller) {
    auto caller = take("caller");
    scope->set(template_.caller_symbol, caller ? std::move(*caller) : make_undefined(heap_, "No caller defined"));
  }
  if (stmt.uses_kwargs) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [key, value] : named) dict->set(make_string(heap_, key, kTrusted), std::move(value));
    scope->set(template_.kwargs_symbol, make_dict(heap_, std::move(dict)));
  } else if (!named.empty()) {
    fail("macro '{}' takes no keyword argument '{}'", name, named[0].first);
  }
  if (stmt.uses_varargs) {
    scope->set(template_.varargs_symbol,
               make_sequence(heap_, Kind::kTuple,
                             Values(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                                    arguments.positional.end())));
  } else if (arguments.positional.size() > given) {
    fail("macro '{}' takes not more than {} argument(s)", name, stmt.parameters.size());
  }
  Flow flow = Flow::kNormal;
  return make_string(heap_, capture(stmt.bodies[0], flow));
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
  heap_.step();
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.is(Kind::kLoop)) {
    const Entered entered(*this);
    auto& loop = callee.as<LoopObject>();
    if (!loop.statement->recursive || !loop.scope)
      fail("The loop must have the 'recursive' marker to be called recursively.");
    if (arguments.positional.size() != 1 || !arguments.named.empty()) fail("loop() takes one argument");
    TextBuilder buffer(heap_);
    const Swapped<TextBuilder*> output(out_, &buffer);
    const Swapped<std::shared_ptr<Scope>> inner(scope_, loop.scope);
    run_for(*loop.statement, arguments.positional[0], loop.depth0 + 1);
    return make_string(heap_, buffer.finish());
  }
  if (!callee.is(Kind::kCallable)) fail("'{}' object is not callable", type_name(callee));
  auto& object = callee.as<CallableObject>();
  switch (object.what) {
    case CallableObject::What::kMacro: return call_macro(object, arguments);
    case CallableObject::What::kFunction: return call_function(object.name, arguments);
    case CallableObject::What::kMethod: return object.method->function(*this, object.self, arguments);
    case CallableObject::What::kLoopCycle: {
      if (arguments.positional.empty()) fail("no items for cycling given");
      const auto at = static_cast<uint64_t>(object.self.as<LoopObject>().index0);
      return arguments.positional[at % arguments.positional.size()];
    }
    case CallableObject::What::kLoopChanged: {
      auto& loop = object.self.as<LoopObject>();
      bool same = loop.last_changed && loop.last_changed->size() == arguments.positional.size();
      for (size_t i = 0; same && i < arguments.positional.size(); ++i)
        same = equal(heap_, (*loop.last_changed)[i], arguments.positional[i]);
      // A loop that has ended keeps nothing, so that it can't hold itself.
      if (!same && loop.scope) loop.last_changed = arguments.positional;
      return Value::boolean(!same);
    }
    case CallableObject::What::kCyclerNext: {
      auto& cycler = object.self.as<CallableObject>();
      const Value value = cycler.items[cycler.next];
      cycler.next = (cycler.next + 1) % cycler.items.size();
      return value;
    }
    case CallableObject::What::kCyclerReset: object.self.as<CallableObject>().next = 0; return Value();
    case CallableObject::What::kJoiner:
      if (object.next++ == 0) return make_string(heap_, "", kTrusted);
      return object.items[0];
    case CallableObject::What::kLoop:
    case CallableObject::What::kCycler: break;
  }
  fail("'{}' object is not callable", object.name);
}

std::optional<std::string> printed_callable(const Value& value) {
  if (value.is(Kind::kLoop)) {
    const auto& loop = value.as<LoopObject>();
    // A filtered loop's length would have to run the filter.
    if (loop.filtered) return std::nullopt;
    const auto rest = static_cast<int64_t>(loop.source.size() - loop.next_source) + (loop.after ? 1 : 0);
    return fmt::format("<LoopContext {}/{}>", loop.index0 + 1, loop.length.value_or(loop.index0 + 1 + rest));
  }
  const auto& object = value.as<CallableObject>();
  if (object.what == CallableObject::What::kMacro) return fmt::format("<Macro '{}'>", object.name);
  return std::nullopt;
}

}  // namespace headrace::text::jinja
