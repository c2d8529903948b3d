// Evaluates a parsed template over variables.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"
#include "text/jinja/callable.h"
#include "text/jinja/styled_text.h"
#include "text/jinja/value.h"

namespace headrace::text::jinja {

// One rendering. Throws Failure.
class Interpreter {
 public:
  using Clock = std::function<std::string(std::string_view format)>;

  // `clock` may be empty.
  Interpreter(const Template& parsed, const Limits& limits, Clock clock);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Heap& heap() { return heap_; }
  void set_variable(const std::string& name, Value value);
  StyledText render();

  // For filters, tests and methods.
  Value call(const Value& callee, const CallArguments& arguments);
  Value apply_filter(std::string_view name, const Value& input, const CallArguments& arguments);
  bool apply_test(std::string_view name, const Value& input, const CallArguments& arguments);
  // object.name and object[key] with jinja2's rules: either falls back to the other, and then to undefined.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  // `path` as filters take it: an integer, or names with dots between.
  Value attribute_path(const Value& object, const Value& path, const Value* fallback);
  const Clock& clock() const { return clock_; }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  struct Entered;

  Flow run(const Body& body);
  Flow run(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& source, int64_t depth0);
  StyledText capture(const Body& body, Flow& flow);
  bool advance(LoopObject& loop);
  std::optional<Value> fetch(LoopObject& loop);
  int64_t loop_length(LoopObject& loop);

  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller);
  Value eval_filter(const Expr& expr, const Value* block);
  bool eval_test(const Expr& expr);
  CallArguments eval_arguments(const Arguments& arguments);
  void assign(const Expr& target, const Value& value);

  Value call_macro(const CallableObject& macro, const CallArguments& arguments);
  Value call_function(const std::string& name, const CallArguments& arguments);
  Value make_macro(const Stmt& stmt, std::string name);
  Value loop_attribute(const Value& loop, const std::string& name);
  Value method(const Value& self, const MethodEntry& entry);
  Value callable(CallableObject::What what, std::string name, Value self);
  std::optional<Value> python_attribute(const Value& object, const std::string& name);
  std::optional<Value> python_item(const Value& object, const Value& key);

  const Template& template_;
  Heap heap_;  // before all values, which give their charge back to it
  Clock clock_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;
  std::vector<std::shared_ptr<Object>> namespaces_;
  std::unordered_map<std::string, Value> context_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* out_ = nullptr;
  Position position_;
  int depth_ = 0;
};

// Arithmetic and comparison, in operators.cpp.
Value binary_operation(Heap& heap, BinaryOp op, const Value& left, const Value& right);
Value negate(Heap& heap, const Value& value, bool minus);
bool contains(Heap& heap, const Value& container, const Value& item);
Value slice_value(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);
[[noreturn]] void fail_undefined(const Value& value);
// HTML-escaped, as Markup.
Value escape_value(Heap& heap, const Value& value);

// str % values and str.format, in format.cpp.
Value percent_format(Heap& heap, const Value& format, const Value& values);
Value brace_format(Interpreter& interpreter, const Value& format, const CallArguments& arguments);

// json.dumps, in json_dump.cpp.
struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string dump_json(Heap& heap, const Value& value, const JsonStyle& style);

// Datetime.strftime of a UTC time for the C locale; fails on directives it doesn't have.
std::string format_time(int64_t unix_seconds, std::string_view format);

}  // namespace headrace::text::jinja
