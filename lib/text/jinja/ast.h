// The parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/value.h"

namespace headrace::text::jinja {

struct FilterEntry;
struct TestEntry;

enum class ExprKind : uint8_t {
  kConstant,            // value
  kName,                // name
  kNamespaceAttribute,  // name.attribute as the target of a set
  kTuple,               // operands
  kList,                // operands
  kDict,                // operands: key, value, key, value, ...
  kAttribute,           // operands[0].attribute
  kItem,                // operands[0][operands[1]]
  kSlice,               // operands[0][operands[1]:operands[2]:operands[3]], absent bounds null
  kCall,                // operands[0](arguments)
  kFilter,              // operands[0] | name(arguments); operands[0] null: the body of a block
  kTest,                // operands[0] is name(arguments)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kConditional,  // operands[0] if operands[1] else operands[2] (may be null)
  kConcat,       // operands joined as text
  kBinary,       // operands[0] op operands[1]
  kCompare,      // operands[0] compares[0] operands[1] compares[1] operands[2] ...
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *sequence
  ExprPtr double_star;  // **mapping
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  BinaryOp binary = BinaryOp::kAdd;
  uint16_t depth = 1;
  int symbol = -1;  // of kName and kNamespaceAttribute: index of the name
  Position position;
  Value value;
  std::string name;
  std::vector<ExprPtr> operands;
  std::vector<CompareOp> compares;
  std::unique_ptr<Arguments> arguments;
  const FilterEntry* filter = nullptr;  // null: unknown, which only fails when it's reached
  const TestEntry* test = nullptr;
};

enum class StmtKind : uint8_t {
  kData,         // text
  kOutput,       // expressions[0]
  kIf,           // expressions[i] guards bodies[i]; one body more is the else
  kFor,          // target in expressions[0] if expressions[1] (may be null); bodies: body, else
  kSet,          // target = expressions[0]
  kSetBlock,     // target = bodies[0], through expressions[0] (a filter chain, may be null)
  kMacro,        // name, parameters, bodies[0]
  kCallBlock,    // expressions[0] is the call; parameters and bodies[0] are the caller
  kFilterBlock,  // bodies[0] through expressions[0]
  kWith,         // targets = expressions; bodies[0]
  kGeneration,   // bodies[0]
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Parameter {
  std::string name;
  int symbol = -1;
  ExprPtr fallback;  // may be null
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  bool recursive = false;
  // Of macros and call blocks: which of the special names the body uses.
  bool uses_caller = false;
  bool uses_kwargs = false;
  bool uses_varargs = false;
  bool explicit_caller = false;  // a parameter is named caller
  int symbol = -1;               // of kMacro
  Position position;
  StyledText text;
  std::string name;
  std::vector<ExprPtr> expressions;
  std::vector<ExprPtr> targets;
  std::vector<Parameter> parameters;
  std::vector<Body> bodies;
};

struct Template {
  Body body;
  std::vector<std::string> symbols;
  int loop_symbol = -1, caller_symbol = -1, kwargs_symbol = -1, varargs_symbol = -1;
};

}  // namespace headrace::text::jinja
