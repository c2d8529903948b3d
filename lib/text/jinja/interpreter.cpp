#include "text/jinja/interpreter.h"

#include <utility>

#include "text/jinja/interpreter_guards.h"

namespace headrace::text::jinja {

Interpreter::Interpreter(const Template& parsed, const Limits& limits, Clock clock)
    : template_(parsed), heap_(limits), clock_(std::move(clock)) {
  heap_.set_stack_base(__builtin_frame_address(0));
}

Interpreter::~Interpreter() {
  // Namespaces and captured scopes may hold each other in circles.
  for (const auto& scope : captured_scopes_) scope->variables.clear();
  for (const auto& object : namespaces_) static_cast<NamespaceObject&>(*object).attributes.entries.clear();
}

void Interpreter::set_variable(const std::string& name, Value value) {
  context_.insert_or_assign(name, std::move(value));
}

StyledText Interpreter::render() {
  TextBuilder out(heap_);
  heap_.set_stack_base(__builtin_frame_address(0));
  try {
    const Swapped<TextBuilder*> output(out_, &out);
    scope_ = std::make_shared<Scope>();
    run(template_.body);
  } catch (Failure& failure) {
    if (failure.position.line == 0) failure.position = position_;
    throw;
  }
  return out.finish();
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = run(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

StyledText Interpreter::capture(const Body& body, Flow& flow) {
  TextBuilder buffer(heap_);
  const Swapped<TextBuilder*> output(out_, &buffer);
  flow = run(body);
  return buffer.finish();
}

Interpreter::Flow Interpreter::run(const Stmt& stmt) {
  heap_.step();
  heap_.check_stack();
  position_ = stmt.position;
  switch (stmt.kind) {
    case StmtKind::kData: out_->append(stmt.text); return Flow::kNormal;
    case StmtKind::kOutput: {
      const Value value = eval(*stmt.expressions[0]);
      append_str(*out_, value);
      return Flow::kNormal;
    }
    case StmtKind::kIf:
      for (size_t i = 0; i < stmt.expressions.size(); ++i)
        if (truthy(heap_, eval(*stmt.expressions[i]))) return run(stmt.bodies[i]);
      return stmt.bodies.size() > stmt.expressions.size() ? run(stmt.bodies.back()) : Flow::kNormal;
    case StmtKind::kFor: return run_for(stmt, eval(*stmt.expressions[0]), 0);
    case StmtKind::kSet: {
      const Value value = eval(*stmt.expressions[0]);
      assign(*stmt.targets[0], value);
      return Flow::kNormal;
    }
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock: {
      Flow flow = Flow::kNormal;
      Value value;
      {
        const Swapped<std::shared_ptr<Scope>> inner(scope_, inner_scope(scope_));
        value = make_string(heap_, capture(stmt.bodies[0], flow));
        // A break out of the block leaves its text behind.
        if (flow != Flow::kNormal) return flow;
        if (stmt.expressions[0]) value = eval_filter(*stmt.expressions[0], &value);
      }
      if (stmt.kind == StmtKind::kSetBlock) {
        assign(*stmt.targets[0], value);
      } else {
        append_str(*out_, value);
      }
      return Flow::kNormal;
    }
    case StmtKind::kMacro: scope_->set(stmt.symbol, make_macro(stmt, stmt.name)); return Flow::kNormal;
    case StmtKind::kCallBlock: {
      const Value caller = make_macro(stmt, "caller");
      const Value value = eval_call(*stmt.expressions[0], &caller);
      append_str(*out_, value);
      return Flow::kNormal;
    }
    case StmtKind::kWith: {
      Values values;
      for (const ExprPtr& expression : stmt.expressions) values.push_back(eval(*expression));
      const Swapped<std::shared_ptr<Scope>> inner(scope_, inner_scope(scope_));
      for (size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], values[i]);
      return run(stmt.bodies[0]);
    }
    case StmtKind::kGeneration: {
      const Entered entered(*this);
      Flow flow = Flow::kNormal;
      const Swapped<std::shared_ptr<Scope>> inner(scope_, inner_scope(scope_));
      const StyledText text = capture(stmt.bodies[0], flow);
      out_->append(text, kGenerated);
      return Flow::kNormal;
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::assign(const Expr& target, const Value& value) {
  switch (target.kind) {
    case ExprKind::kName: scope_->set(target.symbol, value); return;
    case ExprKind::kNamespaceAttribute: {
      const Value holder = eval_name(target);
      position_ = target.position;
      if (!holder.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
      const std::string& name = target.value.bytes();
      if (name.starts_with("_")) fail("a namespace can't have the attribute '{}'", name);
      auto& attributes = holder.as<NamespaceObject>().attributes;
      if (!attributes.find(name)) {
        heap_.charge(128);
        holder.as<NamespaceObject>().charged += 128;
      }
      attributes.set(target.value, value);
      return;
    }
    default: {
      position_ = target.position;
      const Values items = iterate(heap_, value);
      if (items.size() < target.operands.size())
        fail("not enough values to unpack (expected {}, got {})", target.operands.size(), items.size());
      if (items.size() > target.operands.size())
        fail("too many values to unpack (expected {})", target.operands.size());
      for (size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i]);
    }
  }
}

Value Interpreter::eval_name(const Expr& expr) {
  for (Scope* scope = scope_.get(); scope; scope = scope->parent.get())
    if (const Value* value = scope->find(expr.symbol)) return *value;
  if (const auto found = context_.find(expr.name); found != context_.end()) return found->second;
  position_ = expr.position;
  if (is_global_function(expr.name)) return callable(CallableObject::What::kFunction, expr.name, Value());
  return make_undefined(heap_, fmt::format("'{}' is undefined", expr.name));
}

}  // namespace headrace::text::jinja
