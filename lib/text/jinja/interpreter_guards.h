// What the interpreter changes for the time of a call or a scope, and puts back however that ends.
#pragma once

#include <memory>
#include <utility>

#include "text/jinja/interpreter.h"

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

inline std::shared_ptr<Scope> inner_scope(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace headrace::text::jinja
