// Parses expressions, from operators down to filters and calls. What a statement around them has to know is kept here:
// symbols, special names, and which unknown names are no errors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/token_cursor.h"

namespace headrace::text::jinja {

// For the parser of statements, which builds on it. Throws Failure.
class ExpressionParser : protected TokenCursor {
 protected:
  using TokenCursor::TokenCursor;

  // One level deeper for as long as it lives; fails on too many.
  struct Nesting {
    Nesting(const TokenCursor& cursor, int& counter, int limit) : counter_(counter) {
      if (counter_ >= limit) fail_at(cursor.current().position, "the template nests deeper than {} levels here", limit);
      ++counter_;
    }
    ~Nesting() { --counter_; }
    Nesting(const Nesting&) = delete;
    int& counter_;
  };

  // While it lives, unknown names are no errors yet (filters and tests as in jinja2, where that ends at the
  // next scope, or functions, where it doesn't).
  struct Soft {
    explicit Soft(int& counter) : counter_(counter) { ++counter_; }
    ~Soft() { --counter_; }
    Soft(const Soft&) = delete;
    int& counter_;
  };

  // While it lives, unknown names are errors again, whatever stands around.
  struct Hard {
    explicit Hard(int& counter) : counter_(counter), outer_(counter) { counter_ = 0; }
    ~Hard() { counter_ = outer_; }
    Hard(const Hard&) = delete;
    int& counter_;
    int outer_;
  };

  // The index of a name among the template's symbols, which it joins.
  int symbol(const std::string& name);

  ExprPtr parse_expression() { return parse_conditional(); }
  // An expression, or several with commas as a tuple.
  ExprPtr parse_tuple(bool with_conditional, std::string_view end_name = "", bool in_parentheses = false);
  ExprPtr parse_or() { return parse_logic(ExprKind::kOr); }
  // A name, constant, list, dict or parentheses. with_namespace: name.attribute too, as the target of a set.
  ExprPtr parse_primary(bool with_namespace);
  // One filter's name and arguments, over `operand`.
  ExprPtr parse_filter(ExprPtr operand);
  // "| filter" as often as it stands there, over `operand`.
  ExprPtr parse_filters(ExprPtr operand);
  // Whether an expression ends here, or at the name `end_name`.
  bool tuple_ends(std::string_view end_name) const;
  // Unknown names that no conditional excuses are errors; functions wait for the end of the template, as
  // macros may be defined further down.
  void settle();

  ExprPtr make(ExprKind kind, Position position) const;
  // Bounds the tree's depth, which recursion over it follows, also where loops of the parser build it.
  ExprPtr finish(ExprPtr expr) const;

  struct Specials {
    bool caller = false, kwargs = false, varargs = false;
  };

  std::vector<std::string> symbols_;
  std::vector<std::pair<std::string, Position>> called_;  // functions, for when all macros are known
  Specials specials_;                                     // special names that occurred
  int soft_ = 0;                                          // depth in Soft, for filters and tests
  int function_ = 0;                                      // the same for functions

 private:
  // Nesting that no real template comes near, and whose recursion fits a thread's stack.
  static constexpr int kMaxNesting = 100;

  struct Pending {
    enum What : uint8_t { kFilter, kTest, kFunction } what;
    std::string name;
    Position position;
  };

  ExprPtr binary(BinaryOp op, ExprPtr left, ExprPtr right, Position position);
  ExprPtr parse_conditional();
  ExprPtr parse_logic(ExprKind kind);
  ExprPtr parse_not();
  bool accept_comparison(CompareOp& op);
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object);
  std::unique_ptr<Arguments> parse_arguments();
  ExprPtr parse_call(ExprPtr callee);
  std::string parse_dotted_name();
  ExprPtr parse_test(ExprPtr operand);

  std::unordered_map<std::string, int> symbol_index_;
  std::vector<Pending> pending_;
  int expression_nesting_ = 0;
};

}  // namespace headrace::text::jinja
