// The operands of expressions: literals, names, and what follows them (attributes, items, calls, filters, tests).
#include "text/jinja/builtins.h"
#include "text/jinja/expression_parser.h"

namespace headrace::text::jinja {

ExprPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token& token = current();
  const Position position = token.position;
  switch (token.kind) {
    case TokenKind::kName: {
      // jinja2 would read these as variables; no template means that, and templates of other languages
      // ("{{ if .System }}") would turn into silence.
      for (const std::string_view keyword : {"if", "else", "and", "or", "in", "is"})
        if (token.text == keyword) fail_at(position, "expected an expression, got '{}'", keyword);
      const std::string name = next().text;
      auto expr = make(ExprKind::kConstant, position);
      if (name == "true" || name == "True") {
        expr->value = Value::boolean(true);
      } else if (name == "false" || name == "False") {
        expr->value = Value::boolean(false);
      } else if (name == "none" || name == "None") {
        expr->value = Value();
      } else {
        expr->kind = ExprKind::kName;
        expr->name = name;
        expr->symbol = symbol(name);
        if (name == "caller") specials_.caller = true;
        if (name == "kwargs") specials_.kwargs = true;
        if (name == "varargs") specials_.varargs = true;
        if (with_namespace && accept_operator(".")) {
          expr->kind = ExprKind::kNamespaceAttribute;
          expr->value = make_constant(expect_name());
        }
      }
      return expr;
    }
    case TokenKind::kString: {
      std::string text = next().text;
      while (current().kind == TokenKind::kString) text += next().text;
      auto expr = make(ExprKind::kConstant, position);
      expr->value = make_constant(std::move(text));
      return expr;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      auto expr = make(ExprKind::kConstant, position);
      expr->value = token.kind == TokenKind::kInteger ? Value::integer(token.integer) : Value::number(token.number);
      next();
      return expr;
    }
    default: break;
  }
  if (accept_operator("(")) {
    const Nesting nesting(*this, expression_nesting_, kMaxNesting);
    ExprPtr expr = parse_tuple(true, "", true);
    expect_operator(")");
    return expr;
  }
  if (accept_operator("[")) {
    auto expr = make(ExprKind::kList, position);
    while (!current().is_operator("]")) {
      if (!expr->operands.empty()) expect_operator(",");
      if (current().is_operator("]")) break;
      expr->operands.push_back(parse_expression());
    }
    expect_operator("]");
    return finish(std::move(expr));
  }
  if (accept_operator("{")) {
    auto expr = make(ExprKind::kDict, position);
    while (!current().is_operator("}")) {
      if (!expr->operands.empty()) expect_operator(",");
      if (current().is_operator("}")) break;
      expr->operands.push_back(parse_expression());
      expect_operator(":");
      expr->operands.push_back(parse_expression());
    }
    expect_operator("}");
    return finish(std::move(expr));
  }
  fail_at(position, "expected an expression, got {}", describe(token));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (current().is_operator(".") || current().is_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr expr) {
  for (;;) {
    if (current().is_operator("|")) {
      expr = parse_filters(std::move(expr));
    } else if (current().is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const Position position = current().position;
  if (accept_operator(".")) {
    auto expr = make(ExprKind::kAttribute, position);
    expr->operands.push_back(std::move(object));
    if (current().kind == TokenKind::kInteger) {
      expr->kind = ExprKind::kItem;
      auto index = make(ExprKind::kConstant, current().position);
      index->value = Value::integer(next().integer);
      expr->operands.push_back(std::move(index));
    } else {
      if (current().kind != TokenKind::kName)
        fail_at(current().position, "expected a name or number behind '.', got {}", describe(current()));
      expr->name = next().text;
    }
    return finish(std::move(expr));
  }
  next();
  const Nesting nesting(*this, expression_nesting_, kMaxNesting);
  auto expr = make(ExprKind::kItem, position);
  expr->operands.push_back(std::move(object));
  if (current().is_operator("]")) {
    auto empty = make(ExprKind::kTuple, position);
    expr->operands.push_back(std::move(empty));
    next();
    return finish(std::move(expr));
  }
  ExprPtr first = current().is_operator(":") ? nullptr : parse_expression();
  if (accept_operator(":")) {
    expr->kind = ExprKind::kSlice;
    expr->operands.push_back(std::move(first));
    const auto bound = [&]() -> ExprPtr {
      if (current().is_operator(":") || current().is_operator("]") || current().is_operator(",")) return nullptr;
      return parse_expression();
    };
    expr->operands.push_back(bound());
    expr->operands.push_back(accept_operator(":") ? bound() : nullptr);
    if (current().is_operator(",")) fail_at(current().position, "slices of several dimensions are not supported");
  } else if (current().is_operator(",")) {
    auto index = make(ExprKind::kTuple, position);
    index->operands.push_back(std::move(first));
    while (accept_operator(",") && !current().is_operator("]")) index->operands.push_back(parse_expression());
    expr->operands.push_back(finish(std::move(index)));
  } else {
    expr->operands.push_back(std::move(first));
  }
  expect_operator("]");
  return finish(std::move(expr));
}

std::unique_ptr<Arguments> ExpressionParser::parse_arguments() {
  const Position position = current().position;
  expect_operator("(");
  const Nesting nesting(*this, expression_nesting_, kMaxNesting);
  auto arguments = std::make_unique<Arguments>();
  const auto ensure = [&](bool good) {
    if (!good) fail_at(position, "the arguments of this call are in a wrong order");
  };
  bool first = true;
  while (!current().is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    first = false;
    if (accept_operator("*")) {
      ensure(!arguments->star && !arguments->double_star);
      arguments->star = parse_expression();
    } else if (accept_operator("**")) {
      ensure(!arguments->double_star);
      arguments->double_star = parse_expression();
    } else if (current().kind == TokenKind::kName && ahead().is_operator("=")) {
      ensure(!arguments->double_star);
      const Position at = current().position;
      std::string name = next().text;
      next();
      for (const auto& [other, value] : arguments->named)
        if (other == name) fail_at(at, "the argument '{}' is named twice", name);
      arguments->named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!arguments->star && !arguments->double_star && arguments->named.empty());
      arguments->positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  if (callee->kind == ExprKind::kName && soft_ == 0 && function_ == 0)
    pending_.push_back({Pending::kFunction, callee->name, callee->position});
  auto expr = make(ExprKind::kCall, current().position);
  expr->operands.push_back(std::move(callee));
  expr->arguments = parse_arguments();
  return finish(std::move(expr));
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_name();
  while (accept_operator(".")) name += "." + expect_name();
  return name;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr operand) {
  auto expr = make(ExprKind::kFilter, current().position);
  expr->name = parse_dotted_name();
  expr->filter = find_filter(expr->name);
  if (!expr->filter && soft_ == 0) pending_.push_back({Pending::kFilter, expr->name, expr->position});
  if (current().is_operator("(")) {
    expr->arguments = parse_arguments();
  } else {
    expr->arguments = std::make_unique<Arguments>();
  }
  expr->operands.push_back(std::move(operand));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_filters(ExprPtr operand) {
  while (accept_operator("|")) operand = parse_filter(std::move(operand));
  return operand;
}

ExprPtr ExpressionParser::parse_test(ExprPtr operand) {
  next();
  const bool negated = accept_name("not");
  auto expr = make(ExprKind::kTest, current().position);
  expr->name = parse_dotted_name();
  expr->test = find_test(expr->name);
  if (!expr->test && soft_ == 0) pending_.push_back({Pending::kTest, expr->name, expr->position});
  expr->arguments = std::make_unique<Arguments>();
  const Token& token = current();
  if (token.is_operator("(")) {
    expr->arguments = parse_arguments();
  } else if ((token.kind == TokenKind::kName || token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
              token.kind == TokenKind::kFloat || token.is_operator("[") || token.is_operator("{")) &&
             !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) fail_at(token.position, "tests can't be chained with 'is'");
    expr->arguments->positional.push_back(parse_postfix(parse_primary(false)));
  }
  const Position position = expr->position;
  expr->operands.push_back(std::move(operand));
  ExprPtr out = finish(std::move(expr));
  if (!negated) return out;
  auto inverse = make(ExprKind::kNot, position);
  inverse->operands.push_back(std::move(out));
  return finish(std::move(inverse));
}

}  // namespace headrace::text::jinja
