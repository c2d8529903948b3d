// How long a step will take, learned from the steps before: what lets a plan cut prompts by time instead of by rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::schedule {

// The work of a step, or of a part of one.
struct StepWork {
  double rows = 0.0;   // of linear layers
  double pairs = 0.0;  // of a row and a position that it attends to

  // Rows [first_row, first_row + rows) of a sequence, each seeing all positions up to its own.
  static StepWork of(int64_t first_row, int64_t num_rows) {
    const auto first = static_cast<double>(first_row), n = static_cast<double>(num_rows);
    return {n, n * first + n * (n + 1.0) / 2.0};
  }
  StepWork& operator+=(const StepWork& other) {
    rows += other.rows;
    pairs += other.pairs;
    return *this;
  }
  StepWork& operator-=(const StepWork& other) {
    rows -= other.rows;
    pairs -= other.pairs;
    return *this;
  }
  friend StepWork operator+(StepWork a, const StepWork& b) { return a += b; }
};

// time = step + per row * rows + per pair * pairs, each factor at least 0: a step reads all weights once, a row is
// multiplied by them, and attends to what is before it. At 16k positions a row's attention outweighs its linear layers,
// so rows alone tell little.
//
// The factors are those with the least squares of relative errors. Steps with prompts and steps without are forgotten
// apart, so that an hour of decoding leaves what was learned of prompts. What no step told apart yet follows the ratios
// of a prior, whose scale is measured too. One thread at a time.
class CostModel {
 public:
  struct Factors {
    double step_ns = 0.0;
    double row_ns = 0.0;
    double pair_ns = 0.0;
  };
  // The ratios before anything is measured: a step as long as 8 rows, and attention to 10,000 positions as long as a
  // row's linear layers.
  static constexpr Factors kPrior{800'000.0, 100'000.0, 10.0};

  explicit CostModel(const Factors& prior = kPrior) : prior_(prior), factors_(prior) {}

  const Factors& factors() const { return factors_; }
  double predict_ns(const StepWork& work) const { return factors_.step_ns + added_ns(work); }
  // What the work adds to a step that runs anyway.
  double added_ns(const StepWork& work) const { return factors_.row_ns * work.rows + factors_.pair_ns * work.pairs; }
  // The most rows from position first_row on, at most max_rows, that add no more than ns.
  int64_t rows_within(int64_t first_row, int64_t max_rows, double ns) const;

  // A step did this work in so long. has_prompts: not all of its sequences decoded.
  void observe(const StepWork& work, bool has_prompts, int64_t ns);

 private:
  static constexpr size_t kFactors = 3;
  using Vector = std::array<double, kFactors>;
  // Sums over observations of x x^T and x, with x the prior's three parts of the step over the time it took: the sum of
  // a * x should be 1, a being the factors in units of the prior's.
  struct Sums {
    std::array<Vector, kFactors> products = {};
    Vector sum = {};
    double weight = 0.0;
    void add(const Vector& x, double keep);
  };
  void fit();

  Factors prior_;
  Factors factors_;
  Sums prompts_, decodes_;
};

}  // namespace headrace::schedule
