#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <set>

#include "text/jinja/builtins.h"
#include "text/jinja/expression_parser.h"

namespace headrace::text::jinja {
namespace {

// Nesting that no real template comes near, and whose recursion fits a thread's stack.
constexpr int kMaxStatementNesting = 100;

class StatementParser : private ExpressionParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {
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
    template_->symbols = std::move(symbols_);
    return std::move(template_);
  }

 private:
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

  std::unique_ptr<Template> template_;
  std::set<std::string> assigned_;
  int statement_nesting_ = 0;
  int loops_ = 0;
  Position open_tag_;
  std::string open_name_;
};

}  // namespace

std::unique_ptr<const Template> parse_template(std::string_view source) {
  return StatementParser(tokenize(source)).run();
}

}  // namespace headrace::text::jinja
