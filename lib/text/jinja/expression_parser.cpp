#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <iterator>

namespace headrace::text::jinja {
namespace {

// Depth that no real template comes near, and whose recursion fits a thread's stack.
constexpr int kMaxTreeDepth = 1000;

}  // namespace

int ExpressionParser::symbol(const std::string& name) {
  const auto [entry, added] = symbol_index_.emplace(name, static_cast<int>(symbols_.size()));
  if (added) symbols_.push_back(name);
  return entry->second;
}

ExprPtr ExpressionParser::make(ExprKind kind, Position position) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->position = position;
  return expr;
}

ExprPtr ExpressionParser::finish(ExprPtr expr) const {
  int depth = 0;
  const auto visit = [&](const ExprPtr& child) {
    if (child) depth = std::max<int>(depth, child->depth);
  };
  for (const ExprPtr& child : expr->operands) visit(child);
  if (expr->arguments) {
    for (const ExprPtr& child : expr->arguments->positional) visit(child);
    for (const auto& [name, child] : expr->arguments->named) visit(child);
    visit(expr->arguments->star);
    visit(expr->arguments->double_star);
  }
  if (depth + 1 > kMaxTreeDepth) fail_at(expr->position, "the expression has more than {} levels", kMaxTreeDepth);
  expr->depth = static_cast<uint16_t>(depth + 1);
  return expr;
}

ExprPtr ExpressionParser::binary(BinaryOp op, ExprPtr left, ExprPtr right, Position position) {
  auto expr = make(ExprKind::kBinary, position);
  expr->binary = op;
  expr->operands.push_back(std::move(left));
  expr->operands.push_back(std::move(right));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_conditional() {
  const Nesting nesting(*this, expression_nesting_, kMaxNesting);
  // Whether this is a conditional is known only behind its first part, so what that part calls is looked up
  // when it's known.
  const size_t pending = pending_.size();
  ExprPtr value = parse_or();
  bool conditional = false;
  while (current().is_name("if")) {
    conditional = true;
    const Soft soft(soft_);
    const Soft in_condition(function_);
    auto expr = make(ExprKind::kConditional, current().position);
    next();
    expr->operands.push_back(std::move(value));
    expr->operands.push_back(parse_or());
    expr->operands.push_back(accept_name("else") ? parse_conditional() : nullptr);
    value = finish(std::move(expr));
  }
  if (conditional) pending_.resize(pending);
  return value;
}

ExprPtr ExpressionParser::parse_logic(ExprKind kind) {
  const bool is_or = kind == ExprKind::kOr;
  ExprPtr left = is_or ? parse_logic(ExprKind::kAnd) : parse_not();
  while (current().is_name(is_or ? "or" : "and")) {
    auto expr = make(kind, current().position);
    next();
    // The right side may never be reached; jinja2 checks filters there all the same, calls only when
    // reached.
    const Soft in_function(function_);
    expr->operands.push_back(std::move(left));
    expr->operands.push_back(is_or ? parse_logic(ExprKind::kAnd) : parse_not());
    left = finish(std::move(expr));
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this, expression_nesting_, kMaxNesting);
  auto expr = make(ExprKind::kNot, current().position);
  next();
  expr->operands.push_back(parse_not());
  return finish(std::move(expr));
}

bool ExpressionParser::accept_comparison(CompareOp& op) {
  static constexpr std::pair<std::string_view, CompareOp> kSymbols[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                        {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                                        {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  for (const auto& [symbol, meaning] : kSymbols) {
    if (!accept_operator(symbol)) continue;
    op = meaning;
    return true;
  }
  if (accept_name("in")) {
    op = CompareOp::kIn;
    return true;
  }
  if (current().is_name("not") && ahead().is_name("in")) {
    next();
    next();
    op = CompareOp::kNotIn;
    return true;
  }
  return false;
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr first = parse_sum();
  const Position position = current().position;
  CompareOp op = CompareOp::kEq;
  if (!accept_comparison(op)) return first;
  auto expr = make(ExprKind::kCompare, position);
  expr->operands.push_back(std::move(first));
  do {
    expr->compares.push_back(op);
    expr->operands.push_back(parse_sum());
  } while (accept_comparison(op));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const Position position = current().position;
    const BinaryOp op = next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSub;
    left = binary(op, std::move(left), parse_concat(), position);
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  auto expr = make(ExprKind::kConcat, current().position);
  expr->operands.push_back(std::move(first));
  while (accept_operator("~")) expr->operands.push_back(parse_product());
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  for (;;) {
    static constexpr std::pair<std::string_view, BinaryOp> kSymbols[] = {
        {"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}};
    const Position position = current().position;
    const auto found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                    [&](const auto& entry) { return accept_operator(entry.first); });
    if (found == std::end(kSymbols)) return left;
    left = binary(found->second, std::move(left), parse_power(), position);
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (current().is_operator("**")) {
    const Position position = next().position;
    left = binary(BinaryOp::kPow, std::move(left), parse_unary(true), position);
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  ExprPtr expr;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Nesting nesting(*this, expression_nesting_, kMaxNesting);
    expr = make(current().is_operator("-") ? ExprKind::kNegative : ExprKind::kPositive, current().position);
    next();
    expr->operands.push_back(parse_unary(false));
    expr = finish(std::move(expr));
  } else {
    expr = parse_primary(false);
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

bool ExpressionParser::tuple_ends(std::string_view end_name) const {
  const Token& token = current();
  return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd || token.is_operator(")") ||
         (!end_name.empty() && token.is_name(end_name));
}

ExprPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name, bool in_parentheses) {
  const Position position = current().position;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_operator(",");
    if (tuple_ends(end_name)) break;
    items.push_back(with_conditional ? parse_expression() : parse_or());
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!in_parentheses) fail_at(position, "expected an expression, got {}", describe(current()));
  }
  auto expr = make(ExprKind::kTuple, position);
  expr->operands = std::move(items);
  return finish(std::move(expr));
}

void ExpressionParser::settle() {
  for (const Pending& pending : pending_) {
    switch (pending.what) {
      case Pending::kFilter: fail_at(pending.position, "unknown filter '{}'", pending.name);
      case Pending::kTest: fail_at(pending.position, "unknown test '{}'", pending.name);
      case Pending::kFunction: called_.emplace_back(pending.name, pending.position);
    }
  }
  pending_.clear();
}

}  // namespace headrace::text::jinja
