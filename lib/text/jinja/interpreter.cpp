#include "text/jinja/interpreter.h"

#include <algorithm>
#include <utility>

namespace headrace::text::jinja {

// One more nested call; fails when there are too many.
struct Interpreter::Entered {
  explicit Entered(Interpreter& in) : interpreter(in) {
    in.heap_.check_stack();
    if (in.depth_ >= in.heap_.limits().max_depth)
      exhausted("calls nest deeper than {} levels", in.heap_.limits().max_depth);
    ++in.depth_;
  }
  ~Entered() { --interpreter.depth_; }
  Entered(const Entered&) = delete;
  Interpreter& interpreter;
};

namespace {

// Puts `value` into `slot` for as long as it lives.
template <class T>
class Swapped {
 public:
  Swapped(T& slot, T value) : slot_(slot), outer_(std::exchange(slot, std::move(value))) {}
  ~Swapped() { slot_ = std::move(outer_); }
  Swapped(const Swapped&) = delete;

 private:
  T& slot_;
  T outer_;
};

std::shared_ptr<Scope> inner_scope(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace

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

// Loops
// ----------------------------------------------------------------------------------------------------------

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

// Names and assignment
// -------------------------------------------------------------------------------------------

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

// Expressions
// ----------------------------------------------------------------------------------------------------

Value Interpreter::eval(const Expr& expr) {
  heap_.step();
  heap_.check_stack();
  switch (expr.kind) {
    case ExprKind::kConstant: return expr.value;
    case ExprKind::kName: return eval_name(expr);
    case ExprKind::kNamespaceAttribute: break;
    case ExprKind::kTuple:
    case ExprKind::kList: {
      Values items;
      items.reserve(expr.operands.size());
      for (const ExprPtr& operand : expr.operands) items.push_back(eval(*operand));
      return make_sequence(heap_, expr.kind == ExprKind::kTuple ? Kind::kTuple : Kind::kList, std::move(items));
    }
    case ExprKind::kDict: {
      auto dict = std::make_shared<DictObject>();
      for (size_t i = 0; i < expr.operands.size(); i += 2) {
        const Value key = eval(*expr.operands[i]);
        Value value = eval(*expr.operands[i + 1]);
        position_ = expr.position;
        dict->set(key, std::move(value));
      }
      return make_dict(heap_, std::move(dict));
    }
    case ExprKind::kAttribute: {
      const Value object = eval(*expr.operands[0]);
      position_ = expr.position;
      return attribute(object, expr.name);
    }
    case ExprKind::kItem: {
      const Value object = eval(*expr.operands[0]);
      const Value key = eval(*expr.operands[1]);
      position_ = expr.position;
      return item(object, key);
    }
    case ExprKind::kSlice: return eval_slice(expr);
    case ExprKind::kCall: return eval_call(expr, nullptr);
    case ExprKind::kFilter: return eval_filter(expr, nullptr);
    case ExprKind::kTest: return Value::boolean(eval_test(expr));
    case ExprKind::kNot: return Value::boolean(!truthy(heap_, eval(*expr.operands[0])));
    case ExprKind::kNegative:
    case ExprKind::kPositive: {
      const Value value = eval(*expr.operands[0]);
      position_ = expr.position;
      return negate(heap_, value, expr.kind == ExprKind::kNegative);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*expr.operands[0]);
      if (truthy(heap_, left) == (expr.kind == ExprKind::kOr)) return left;
      return eval(*expr.operands[1]);
    }
    case ExprKind::kConditional:
      if (truthy(heap_, eval(*expr.operands[1]))) return eval(*expr.operands[0]);
      if (expr.operands[2]) return eval(*expr.operands[2]);
      return make_undefined(heap_, "the inline if-expression evaluated to false and no else section was defined");
    case ExprKind::kConcat: {
      TextBuilder builder(heap_);
      for (const ExprPtr& operand : expr.operands) {
        const Value value = eval(*operand);
        position_ = expr.position;
        append_str(builder, value);
      }
      return make_string(heap_, builder.finish());
    }
    case ExprKind::kBinary: {
      const Value left = eval(*expr.operands[0]);
      const Value right = eval(*expr.operands[1]);
      position_ = expr.position;
      return binary_operation(heap_, expr.binary, left, right);
    }
    case ExprKind::kCompare: return eval_compare(expr);
  }
  fail("this can't be evaluated");
}

Value Interpreter::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.operands[0]);
  const auto bound = [&](const ExprPtr& operand) { return operand ? eval(*operand) : Value(); };
  const Value start = bound(expr.operands[1]);
  const Value stop = bound(expr.operands[2]);
  const Value step = bound(expr.operands[3]);
  position_ = expr.position;
  return slice_value(heap_, object, start, stop, step);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.operands[0]);
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = eval(*expr.operands[i + 1]);
    position_ = expr.position;
    bool holds = false;
    switch (expr.compares[i]) {
      case CompareOp::kEq: holds = equal(heap_, left, right); break;
      case CompareOp::kNe: holds = !equal(heap_, left, right); break;
      case CompareOp::kIn: holds = contains(heap_, right, left); break;
      case CompareOp::kNotIn: holds = !contains(heap_, right, left); break;
      default: {
        const auto result = order(heap_, left, right);
        if (!result) break;
        const CompareOp op = expr.compares[i];
        holds = op == CompareOp::kLt   ? *result < 0
                : op == CompareOp::kLe ? *result <= 0
                : op == CompareOp::kGt ? *result > 0
                                       : *result >= 0;
      }
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

CallArguments Interpreter::eval_arguments(const Arguments& arguments) {
  CallArguments out;
  out.positional.reserve(arguments.positional.size());
  for (const ExprPtr& argument : arguments.positional) out.positional.push_back(eval(*argument));
  if (arguments.star) {
    Values more = iterate(heap_, eval(*arguments.star));
    out.positional.insert(out.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, argument] : arguments.named) out.named.emplace_back(name, eval(*argument));
  if (arguments.double_star) {
    const Value more = eval(*arguments.double_star);
    if (!more.is(Kind::kDict)) fail("argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.as<DictObject>().entries) {
      heap_.step();
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [name, other] : out.named)
        if (name == key.bytes()) fail("got multiple values for keyword argument '{}'", name);
      out.named.emplace_back(key.bytes(), value);
      if (out.named.size() > 1000) exhausted("a call has more than 1000 named arguments");
    }
  }
  return out;
}

Value Interpreter::eval_call(const Expr& expr, const Value* caller) {
  const Value callee = eval(*expr.operands[0]);
  CallArguments arguments = eval_arguments(*expr.arguments);
  if (caller) arguments.named.emplace_back("caller", *caller);
  position_ = expr.position;
  return call(callee, arguments);
}

Value Interpreter::eval_filter(const Expr& expr, const Value* block) {
  Value input;
  if (expr.operands[0]) {
    // Down a chain of filters to the block's text.
    input = block && expr.operands[0]->kind == ExprKind::kFilter ? eval_filter(*expr.operands[0], block)
                                                                 : eval(*expr.operands[0]);
  } else {
    input = *block;
  }
  position_ = expr.position;
  if (!expr.filter) fail("No filter named '{}'.", expr.name);
  const CallArguments arguments = eval_arguments(*expr.arguments);
  position_ = expr.position;
  return expr.filter->function(*this, input, arguments);
}

bool Interpreter::eval_test(const Expr& expr) {
  const Value input = eval(*expr.operands[0]);
  position_ = expr.position;
  if (!expr.test) fail("No test named '{}'.", expr.name);
  const CallArguments arguments = eval_arguments(*expr.arguments);
  position_ = expr.position;
  return expr.test->function(*this, input, arguments);
}

Value Interpreter::apply_filter(std::string_view name, const Value& input, const CallArguments& arguments) {
  const FilterEntry* entry = find_filter(name);
  if (!entry) fail("No filter named '{}'.", name);
  heap_.step();
  heap_.check_stack();
  return entry->function(*this, input, arguments);
}

bool Interpreter::apply_test(std::string_view name, const Value& input, const CallArguments& arguments) {
  const TestEntry* entry = find_test(name);
  if (!entry) fail("No test named '{}'.", name);
  heap_.step();
  heap_.check_stack();
  return entry->function(*this, input, arguments);
}

// Attributes
// -----------------------------------------------------------------------------------------------------

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

// Calls
// ----------------------------------------------------------------------------------------------------------

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
