// Values of expressions.
#include "text/jinja/interpreter.h"

namespace headrace::text::jinja {

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

}  // namespace headrace::text::jinja
