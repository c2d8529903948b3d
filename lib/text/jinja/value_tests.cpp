// The tests behind `is`.
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_operations.h"

namespace headrace::text::jinja {
namespace {

using ArgumentsOf = const CallArguments&;

template <Kind kind>
bool is_kind(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("test", arguments, {});
  return value.is(kind);
}

bool is_defined(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("defined", arguments, {});
  return !value.is_undefined();
}

template <bool wanted>
bool is_truth(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("test", arguments, {});
  return value.is(Kind::kBool) && value.as_bool() == wanted;
}

bool is_integer(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("integer", arguments, {});
  return value.is(Kind::kInt) || value.is(Kind::kBigUint);
}

bool is_number(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("number", arguments, {});
  return value.is_number();
}

bool is_sequence(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("sequence", arguments, {});
  return length_of(value).has_value() && !value.is(Kind::kView);
}

bool is_iterable(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("iterable", arguments, {});
  return iterable(value);
}

bool is_callable(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("callable", arguments, {});
  // jinja2's Undefined has a __call__, which fails.
  return value.is(Kind::kCallable) || value.is(Kind::kLoop) || value.is_undefined();
}

bool is_escaped(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("escaped", arguments, {});
  return value.is_string() && value.text().markup;
}

bool is_same(Interpreter& in, const Value& value, ArgumentsOf arguments) {
  const BoundArguments bound("sameas", arguments, {"other"}, 1);
  if (value.kind() != bound[0]->kind()) return false;
  if (value.identity() || bound[0]->identity()) return value.identity() == bound[0]->identity();
  return equal(in.heap(), value, *bound[0]);
}

template <int rest>
bool is_parity(Interpreter& in, const Value& value, ArgumentsOf arguments) {
  BoundArguments("test", arguments, {});
  const Value modulo = binary_operation(in.heap(), BinaryOp::kMod, value, Value::integer(2));
  return equal(in.heap(), modulo, Value::integer(rest));
}

bool is_divisible(Interpreter& in, const Value& value, ArgumentsOf arguments) {
  const BoundArguments bound("divisibleby", arguments, {"num"}, 1);
  const Value modulo = binary_operation(in.heap(), BinaryOp::kMod, value, *bound[0]);
  return equal(in.heap(), modulo, Value::integer(0));
}

template <CompareOp op>
bool compares(Interpreter& in, const Value& value, ArgumentsOf arguments) {
  const BoundArguments bound("comparison", arguments, {"/a"}, 1);
  const Value& other = *bound[0];
  if (op == CompareOp::kEq) return equal(in.heap(), value, other);
  if (op == CompareOp::kNe) return !equal(in.heap(), value, other);
  if (op == CompareOp::kIn) return contains(in.heap(), other, value);
  const auto result = order(in.heap(), value, other);
  if (!result) return false;
  return op == CompareOp::kLt   ? *result < 0
         : op == CompareOp::kLe ? *result <= 0
         : op == CompareOp::kGt ? *result > 0
                                : *result >= 0;
}

template <CaseTest test>
bool is_case(Interpreter& in, const Value& value, ArgumentsOf arguments) {
  BoundArguments("test", arguments, {});
  return text_case_is(to_str(in.heap(), value).bytes(), test);
}

bool is_filter(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("filter", arguments, {});
  return value.is_string() && find_filter(value.bytes()) != nullptr;
}

bool is_test(Interpreter&, const Value& value, ArgumentsOf arguments) {
  BoundArguments("test", arguments, {});
  return value.is_string() && find_test(value.bytes()) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBool>},
    {"true", is_truth<true>},
    {"false", is_truth<false>},
    {"integer", is_integer},
    {"float", is_kind<Kind::kFloat>},
    {"number", is_number},
    {"string", is_kind<Kind::kString>},
    {"mapping", is_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"sameas", is_same},
    {"odd", is_parity<1>},
    {"even", is_parity<0>},
    {"divisibleby", is_divisible},
    {"eq", compares<CompareOp::kEq>},
    {"equalto", compares<CompareOp::kEq>},
    {"==", compares<CompareOp::kEq>},
    {"ne", compares<CompareOp::kNe>},
    {"!=", compares<CompareOp::kNe>},
    {"lt", compares<CompareOp::kLt>},
    {"lessthan", compares<CompareOp::kLt>},
    {"<", compares<CompareOp::kLt>},
    {"le", compares<CompareOp::kLe>},
    {"<=", compares<CompareOp::kLe>},
    {"gt", compares<CompareOp::kGt>},
    {"greaterthan", compares<CompareOp::kGt>},
    {">", compares<CompareOp::kGt>},
    {"ge", compares<CompareOp::kGe>},
    {">=", compares<CompareOp::kGe>},
    {"in", compares<CompareOp::kIn>},
    {"lower", is_case<CaseTest::kLower>},
    {"upper", is_case<CaseTest::kUpper>},
    {"filter", is_filter},
    {"test", is_test},
};

}  // namespace

const TestEntry* find_test(std::string_view name) { return find_entry(kTests, name); }

}  // namespace headrace::text::jinja
