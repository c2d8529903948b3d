// The statement `for` and the variable `loop`.
#include "text/jinja/interpreter.h"

#include <utility>

#include "text/jinja/interpreter_guards.h"

namespace headrace::text::jinja {

std::optional<Value> Interpreter::fetch(LoopObject& loop) {
  while (loop.next_source < loop.source.size()) {
    heap_.step();
    Value value = loop.source[loop.next_source++];
    if (!loop.filtered) return value;
    const Swapped<std::shared_ptr<Scope>> inner(scope_, inner_scope(loop.scope));
    assign(*loop.statement->targets[0], value);
    if (truthy(heap_, eval(*loop.statement->expressions[1]))) return value;
  }
  return std::nullopt;
}

bool Interpreter::advance(LoopObject& loop) {
  std::optional<Value> value;
  if (loop.after) {
    value = std::exchange(loop.after, std::nullopt);
  } else {
    value = fetch(loop);
  }
  if (!value) return false;
  ++loop.index0;
  loop.previous = std::move(loop.current);
  loop.current = std::move(value);
  return true;
}

int64_t Interpreter::loop_length(LoopObject& loop) {
  if (loop.length) return *loop.length;
  int64_t after = loop.after ? 1 : 0;
  if (loop.filtered) {
    // As jinja2, asking for the length filters all that is left.
    Values rest;
    while (auto value = fetch(loop)) rest.push_back(std::move(*value));
    loop.source = std::move(rest);
    loop.next_source = 0;
    loop.filtered = false;
  }
  loop.length = loop.index0 + 1 + after + static_cast<int64_t>(loop.source.size() - loop.next_source);
  return *loop.length;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt, const Value& source, int64_t depth0) {
  position_ = stmt.position;
  auto loop = std::make_shared<LoopObject>();
  loop->statement = &stmt;
  loop->scope = scope_;
  loop->filtered = stmt.expressions[1] != nullptr;
  loop->depth0 = depth0;
  loop->source = iterate(heap_, source);
  const size_t size = sizeof(LoopObject) + loop->source.size() * sizeof(Value);
  heap_.charge(size);
  loop->heap = &heap_;
  loop->charged = size;
  // What outlives the loop in some variable must not hold elements, or the loop itself.
  struct Ended {
    LoopObject& object;
    ~Ended() {
      object.source.clear();
      object.next_source = 0;
      object.current.reset();
      object.previous.reset();
      object.after.reset();
      object.last_changed.reset();
      object.scope.reset();
    }
  } ended{*loop};

  const Value variable = Value::object(Kind::kLoop, loop);
  bool visited = false;
  std::shared_ptr<Scope> body_scope;
  while (advance(*loop)) {
    visited = true;
    heap_.step();
    if (body_scope && body_scope.use_count() == 1 && !body_scope->captured) {
      body_scope->variables.clear();
    } else {
      body_scope = inner_scope(scope_);
    }
    Flow flow = Flow::kNormal;
    {
      const Swapped<std::shared_ptr<Scope>> inner(scope_, body_scope);
      body_scope->set(template_.loop_symbol, variable);
      assign(*stmt.targets[0], *loop->current);
      flow = run(stmt.bodies[0]);
    }
    if (flow == Flow::kBreak) break;
  }
  body_scope.reset();
  if (visited || stmt.bodies.size() < 2) return Flow::kNormal;
  const Swapped<std::shared_ptr<Scope>> inner(scope_, inner_scope(scope_));
  return run(stmt.bodies[1]);
}

Value Interpreter::loop_attribute(const Value& value, const std::string& name) {
  auto& loop = value.as<LoopObject>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "length") return Value::integer(loop_length(loop));
  if (name == "revindex") return Value::integer(loop_length(loop) - loop.index0);
  if (name == "revindex0") return Value::integer(loop_length(loop) - loop.index0 - 1);
  if (name == "previtem") return loop.previous ? *loop.previous : make_undefined(heap_, "there is no previous item");
  if (name == "last" || name == "nextitem") {
    if (!loop.after) loop.after = fetch(loop);
    if (name == "last") return Value::boolean(!loop.after);
    return loop.after ? *loop.after : make_undefined(heap_, "there is no next item");
  }
  if (name == "cycle") return callable(CallableObject::What::kLoopCycle, name, value);
  if (name == "changed") return callable(CallableObject::What::kLoopChanged, name, value);
  return make_undefined(heap_, fmt::format("'loop' has no attribute '{}'", name));
}

}  // namespace headrace::text::jinja
