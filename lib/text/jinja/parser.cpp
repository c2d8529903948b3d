#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace headrace::text::jinja {
namespace {

// Nesting that no real template comes near, and whose recursion fits a thread's stack.
constexpr int kMaxExpressionNesting = 100;
constexpr int kMaxStatementNesting = 100;
constexpr int kMaxTreeDepth = 1000;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    template_ = std::make_unique<Template>();
    template_->loop_symbol = symbol("loop");
    template_->caller_symbol = symbol("caller");
    template_->kwargs_symbol = symbol("kwargs");
    template_->varargs_symbol = symbol("varargs");
  }

  std::unique_ptr<const Template> run() {
    template_->body = parse_body({});
    for (const auto& [name, position] : called_)
      if (!assigned_.count(name) && !is_global_function(name)) fail_at(position, "unknown function '{}'", name);
    return std::move(template_);
  }

 private:
  struct Nesting {
    Nesting(Parser& parser, int& counter, int limit) : counter_(counter) {
      if (counter_ >= limit) fail_at(parser.current().position, "the template nests deeper than {} levels here", limit);
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

  struct Hard {
    explicit Hard(int& counter) : counter_(counter), outer_(counter) { counter_ = 0; }
    ~Hard() { counter_ = outer_; }
    Hard(const Hard&) = delete;
    int& counter_;
    int outer_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool accept_operator(std::string_view symbol) {
    if (!current().is_operator(symbol)) return false;
    next();
    return true;
  }
  bool accept_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    next();
    return true;
  }
  void expect_operator(std::string_view symbol) {
    if (!accept_operator(symbol)) fail_at(current().position, "expected '{}', got {}", symbol, describe(current()));
  }
  void expect_kind(TokenKind kind, const char* what) {
    if (current().kind != kind) fail_at(current().position, "expected {}, got {}", what, describe(current()));
    next();
  }
  std::string expect_name() {
    if (current().kind != TokenKind::kName) fail_at(current().position, "expected a name, got {}", describe(current()));
    return next().text;
  }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kData: return "text";
      case TokenKind::kVariableBegin: return "'{{'";
      case TokenKind::kVariableEnd:
      case TokenKind::kBlockEnd: return "the end of the tag";
      case TokenKind::kBlockBegin: return "'{%'";
      case TokenKind::kString: return "a string";
      case TokenKind::kInteger:
      case TokenKind::kFloat: return "a number";
      case TokenKind::kEnd: return "the end of the template";
      default: return "'" + token.text + "'";
    }
  }

  int symbol(const std::string& name) {
    const auto [entry, added] = symbol_index_.emplace(name, static_cast<int>(template_->symbols.size()));
    if (added) template_->symbols.push_back(name);
    return entry->second;
  }

  ExprPtr make(ExprKind kind, Position position) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->position = position;
    return expr;
  }

  // Bounds the tree's depth, which recursion over it follows, also where loops of the parser build it.
  ExprPtr finish(ExprPtr expr) const {
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

  ExprPtr binary(BinaryOp op, ExprPtr left, ExprPtr right, Position position) {
    auto expr = make(ExprKind::kBinary, position);
    expr->binary = op;
    expr->operands.push_back(std::move(left));
    expr->operands.push_back(std::move(right));
    return finish(std::move(expr));
  }

  // Statements
  // -----------------------------------------------------------------------------------------------------

  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this, statement_nesting_, kMaxStatementNesting);
    Body body;
    for (;;) {
      settle();
      const Token& token = current();
      switch (token.kind) {
        case TokenKind::kEnd:
          if (ends.size() != 0)
            fail_at(open_tag_, "the tag '{}' is never closed: '{}' is missing", open_name_, *(ends.end() - 1));
          return body;
        case TokenKind::kData: {
          auto stmt = make_stmt(StmtKind::kData);
          stmt->text = plain_text(next().text, kTrusted);
          body.push_back(std::move(stmt));
          break;
        }
        case TokenKind::kVariableBegin: {
          auto stmt = make_stmt(StmtKind::kOutput);
          next();
          stmt->expressions.push_back(parse_tuple(true));
          expect_kind(TokenKind::kVariableEnd, "'}}'");
          body.push_back(std::move(stmt));
          break;
        }
        default: {
          next();
          if (current().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), current().text) != ends.end())
            return body;
          parse_statement(body);
          expect_kind(TokenKind::kBlockEnd, "'%}'");
        }
      }
    }
  }

  StmtPtr make_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->position = current().position;
    return stmt;
  }

  // "%}", the statements up to one of the end tags, and (with `drop`) that tag's name. The last end is the
  // one that closes the tag.
  Body parse_block(const Stmt& stmt, std::string_view name, std::initializer_list<std::string_view> ends, bool drop) {
    accept_operator(":");
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    const Position outer_tag = open_tag_;
    const std::string outer_name = open_name_;
    open_tag_ = stmt.position;
    open_name_ = name;
    Body body = parse_body(ends);
    open_tag_ = outer_tag;
    open_name_ = outer_name;
    if (drop) next();
    return body;
  }

  void parse_statement(Body& body) {
    const Token& token = current();
    if (token.kind != TokenKind::kName) fail_at(token.position, "expected a tag's name, got {}", describe(token));
    const std::string& name = token.text;
    if (name == "if") return body.push_back(parse_if());
    if (name == "for") return body.push_back(parse_for());
    if (name == "set") return body.push_back(parse_set());
    if (name == "macro") return body.push_back(parse_macro());
    if (name == "call") return body.push_back(parse_call_block());
    if (name == "filter") return body.push_back(parse_filter_block());
    if (name == "with") return body.push_back(parse_with());
    if (name == "generation") return body.push_back(parse_generation());
    if (name == "print") return parse_print(body);
    if (name == "break" || name == "continue") {
      auto stmt = make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      if (loops_ == 0) fail_at(token.position, "'{}' outside of a loop", name);
      next();
      return body.push_back(std::move(stmt));
    }
    for (const std::string_view other : {"include", "import", "from", "extends", "block", "autoescape"})
      if (name == other) fail_at(token.position, "the tag '{}' is not supported: a chat template stands alone", name);
    if (!open_name_.empty())
      fail_at(token.position, "unknown tag '{}' (inside '{}' of line {})", name, open_name_, open_tag_.line);
    fail_at(token.position, "unknown tag '{}'", name);
  }

  StmtPtr parse_if() {
    auto stmt = make_stmt(StmtKind::kIf);
    next();
    const Soft soft(soft_);
    const Soft in_condition(function_);
    for (;;) {
      stmt->expressions.push_back(parse_tuple(false));
      stmt->bodies.push_back(parse_block(*stmt, "if", {"elif", "else", "endif"}, false));
      const std::string end = next().text;
      if (end == "elif") continue;
      if (end == "else") stmt->bodies.push_back(parse_block(*stmt, "if", {"endif"}, true));
      return stmt;
    }
  }

  StmtPtr parse_for() {
    auto stmt = make_stmt(StmtKind::kFor);
    next();
    stmt->targets.push_back(parse_target(false, true));
    if (!accept_name("in")) fail_at(current().position, "expected 'in', got {}", describe(current()));
    stmt->expressions.push_back(parse_tuple(false, "recursive"));
    stmt->expressions.push_back(accept_name("if") ? parse_expression() : nullptr);
    stmt->recursive = accept_name("recursive");
    const Hard scope(soft_);
    ++loops_;
    stmt->bodies.push_back(parse_block(*stmt, "for", {"else", "endfor"}, false));
    --loops_;
    if (next().text == "else") stmt->bodies.push_back(parse_block(*stmt, "for", {"endfor"}, true));
    return stmt;
  }

  StmtPtr parse_set() {
    auto stmt = make_stmt(StmtKind::kSet);
    next();
    stmt->targets.push_back(parse_target(true, false));
    if (accept_operator("=")) {
      stmt->expressions.push_back(parse_tuple(true));
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expressions.push_back(parse_filters(nullptr));
    const Hard scope(soft_);
    stmt->bodies.push_back(parse_block(*stmt, "set", {"endset"}, true));
    return stmt;
  }

  void parse_parameters(Stmt& stmt) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!stmt.parameters.empty()) expect_operator(",");
      Parameter parameter;
      const Position position = current().position;
      parameter.name = expect_name();
      check_assignable(parameter.name, position);
      parameter.symbol = symbol(parameter.name);
      for (const Parameter& other : stmt.parameters)
        if (other.symbol == parameter.symbol) fail_at(position, "the parameter '{}' is named twice", parameter.name);
      assigned_.insert(parameter.name);
      if (accept_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!stmt.parameters.empty() && stmt.parameters.back().fallback) {
        fail_at(position, "a parameter without default follows one that has it");
      }
      if (parameter.name == "caller") stmt.explicit_caller = true;
      stmt.parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
  }

  // A body that is a function of its own: loops around it don't reach in, and the special names count here.
  void parse_function_body(Stmt& stmt, std::string_view name, std::string_view end) {
    const int outer_loops = loops_;
    loops_ = 0;
    const auto outer_specials = specials_;
    specials_ = {};
    {
      const Soft in_function(function_);
      const Hard scope(soft_);
      stmt.bodies.push_back(parse_block(stmt, name, {end}, true));
    }
    stmt.uses_caller = specials_.caller;
    stmt.uses_kwargs = specials_.kwargs;
    stmt.uses_varargs = specials_.varargs;
    specials_ = outer_specials;
    loops_ = outer_loops;
  }

  StmtPtr parse_macro() {
    auto stmt = make_stmt(StmtKind::kMacro);
    next();
    const Position position = current().position;
    stmt->name = expect_name();
    check_assignable(stmt->name, position);
    stmt->symbol = symbol(stmt->name);
    assigned_.insert(stmt->name);
    parse_parameters(*stmt);
    parse_function_body(*stmt, "macro", "endmacro");
    return stmt;
  }

  StmtPtr parse_call_block() {
    auto stmt = make_stmt(StmtKind::kCallBlock);
    next();
    if (current().is_operator("(")) parse_parameters(*stmt);
    const Position position = current().position;
    stmt->expressions.push_back(parse_expression());
    if (stmt->expressions[0]->kind != ExprKind::kCall) fail_at(position, "a call block needs a call");
    parse_function_body(*stmt, "call", "endcall");
    return stmt;
  }

  StmtPtr parse_generation() {
    auto stmt = make_stmt(StmtKind::kGeneration);
    next();
    parse_function_body(*stmt, "generation", "endgeneration");
    return stmt;
  }

  StmtPtr parse_filter_block() {
    auto stmt = make_stmt(StmtKind::kFilterBlock);
    next();
    stmt->expressions.push_back(parse_filters(parse_filter(nullptr)));
    const Hard scope(soft_);
    stmt->bodies.push_back(parse_block(*stmt, "filter", {"endfilter"}, true));
    return stmt;
  }

  StmtPtr parse_with() {
    auto stmt = make_stmt(StmtKind::kWith);
    next();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty()) expect_operator(",");
      stmt->targets.push_back(parse_target(false, false));
      expect_operator("=");
      stmt->expressions.push_back(parse_expression());
    }
    const Hard scope(soft_);
    stmt->bodies.push_back(parse_block(*stmt, "with", {"endwith"}, true));
    return stmt;
  }

  void parse_print(Body& body) {
    next();
    for (bool first = true; current().kind != TokenKind::kBlockEnd; first = false) {
      if (!first) expect_operator(",");
      auto stmt = make_stmt(StmtKind::kOutput);
      stmt->expressions.push_back(parse_expression());
      body.push_back(std::move(stmt));
    }
  }

  static void check_assignable(const std::string& name, Position position) {
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
      if (name == constant) fail_at(position, "can't assign to '{}'", name);
  }

  void check_target(const Expr& target) {
    switch (target.kind) {
      case ExprKind::kName: assigned_.insert(target.name); return;
      case ExprKind::kNamespaceAttribute: return;
      case ExprKind::kTuple:
        for (const ExprPtr& item : target.operands) check_target(*item);
        return;
      default: fail_at(target.position, "can't assign to this expression");
    }
  }

  ExprPtr parse_target(bool with_namespace, bool ends_at_in) {
    const Position position = current().position;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    for (;;) {
      if (!items.empty()) expect_operator(",");
      if (tuple_ends(ends_at_in ? "in" : "")) break;
      items.push_back(parse_primary(with_namespace));
      if (!current().is_operator(",")) break;
      is_tuple = true;
    }
    if (items.empty()) fail_at(position, "expected a name to assign to, got {}", describe(current()));
    ExprPtr target;
    if (is_tuple) {
      target = make(ExprKind::kTuple, position);
      target->operands = std::move(items);
      target = finish(std::move(target));
    } else {
      target = std::move(items[0]);
    }
    check_target(*target);
    return target;
  }

  // Expressions
  // ----------------------------------------------------------------------------------------------------

  ExprPtr parse_expression() { return parse_conditional(); }

  ExprPtr parse_conditional() {
    const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
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

  ExprPtr parse_logic(ExprKind kind) {
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

  ExprPtr parse_or() { return parse_logic(ExprKind::kOr); }

  ExprPtr parse_not() {
    if (!current().is_name("not")) return parse_compare();
    const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
    auto expr = make(ExprKind::kNot, current().position);
    next();
    expr->operands.push_back(parse_not());
    return finish(std::move(expr));
  }

  bool accept_comparison(CompareOp& op) {
    static constexpr std::pair<std::string_view, CompareOp> kSymbols[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
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

  ExprPtr parse_compare() {
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

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (current().is_operator("+") || current().is_operator("-")) {
      const Position position = current().position;
      const BinaryOp op = next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSub;
      left = binary(op, std::move(left), parse_concat(), position);
    }
    return left;
  }

  ExprPtr parse_concat() {
    ExprPtr first = parse_product();
    if (!current().is_operator("~")) return first;
    auto expr = make(ExprKind::kConcat, current().position);
    expr->operands.push_back(std::move(first));
    while (accept_operator("~")) expr->operands.push_back(parse_product());
    return finish(std::move(expr));
  }

  ExprPtr parse_product() {
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

  ExprPtr parse_power() {
    ExprPtr left = parse_unary(true);
    while (current().is_operator("**")) {
      const Position position = next().position;
      left = binary(BinaryOp::kPow, std::move(left), parse_unary(true), position);
    }
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    ExprPtr expr;
    if (current().is_operator("-") || current().is_operator("+")) {
      const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
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

  ExprPtr parse_primary(bool with_namespace) {
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
      const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
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

  bool tuple_ends(std::string_view end_name) const {
    const Token& token = current();
    return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd || token.is_operator(")") ||
           (!end_name.empty() && token.is_name(end_name));
  }

  // An expression, or several with commas as a tuple.
  ExprPtr parse_tuple(bool with_conditional, std::string_view end_name = "", bool in_parentheses = false) {
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

  ExprPtr parse_postfix(ExprPtr expr) {
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

  ExprPtr parse_filters_and_tests(ExprPtr expr) {
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

  ExprPtr parse_subscript(ExprPtr object) {
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
    const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
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

  std::unique_ptr<Arguments> parse_arguments() {
    const Position position = current().position;
    expect_operator("(");
    const Nesting nesting(*this, expression_nesting_, kMaxExpressionNesting);
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

  ExprPtr parse_call(ExprPtr callee) {
    if (callee->kind == ExprKind::kName && soft_ == 0 && function_ == 0)
      pending_.push_back({Pending::kFunction, callee->name, callee->position});
    auto expr = make(ExprKind::kCall, current().position);
    expr->operands.push_back(std::move(callee));
    expr->arguments = parse_arguments();
    return finish(std::move(expr));
  }

  std::string parse_dotted_name() {
    std::string name = expect_name();
    while (accept_operator(".")) name += "." + expect_name();
    return name;
  }

  // One filter's name and arguments, over `operand`.
  ExprPtr parse_filter(ExprPtr operand) {
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

  ExprPtr parse_filters(ExprPtr operand) {
    while (accept_operator("|")) operand = parse_filter(std::move(operand));
    return operand;
  }

  ExprPtr parse_test(ExprPtr operand) {
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
    } else if ((token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
                token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat || token.is_operator("[") ||
                token.is_operator("{")) &&
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

  // Unknown names that no conditional excuses are errors; functions wait for the end of the template, as
  // macros may be defined further down.
  void settle() {
    for (const Pending& pending : pending_) {
      switch (pending.what) {
        case Pending::kFilter: fail_at(pending.position, "unknown filter '{}'", pending.name);
        case Pending::kTest: fail_at(pending.position, "unknown test '{}'", pending.name);
        case Pending::kFunction: called_.emplace_back(pending.name, pending.position);
      }
    }
    pending_.clear();
  }

  struct Pending {
    enum What : uint8_t { kFilter, kTest, kFunction } what;
    std::string name;
    Position position;
  };
  struct Specials {
    bool caller = false, kwargs = false, varargs = false;
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::unique_ptr<Template> template_;
  std::unordered_map<std::string, int> symbol_index_;
  std::set<std::string> assigned_;
  std::vector<std::pair<std::string, Position>> called_;
  std::vector<Pending> pending_;
  Specials specials_;
  int expression_nesting_ = 0;
  int statement_nesting_ = 0;
  int loops_ = 0;
  int soft_ = 0;
  int function_ = 0;
  Position open_tag_;
  std::string open_name_;
};

}  // namespace

std::unique_ptr<const Template> parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace headrace::text::jinja
