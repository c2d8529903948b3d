// Which rows of which sequences one step computes, within its budget. Pure arithmetic: knows neither cache nor model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::schedule {

struct StepLimits {
  int64_t max_num_batched_tokens = 512;  // rows of one step
  int64_t max_num_seqs = 64;             // sequences of one step
  int64_t max_logits_rows = 1024;        // rows whose logits are held at once
};

// Positions [begin, end) of a sequence that one step computes together.
struct RowSpan {
  int64_t begin = 0, end = 0;
};

// What one sequence asks of a step.
struct StepDemand {
  int64_t num_pending = 0;  // rows until it can draw its next token, at least 1
  // Of those, how many from the front come before the first row whose logits are wanted; num_pending - 1 when only the
  // last row's are.
  int64_t num_silent = 0;
  int32_t slots = 1;  // what it counts for against max_num_seqs
  // Ascending, of the positions of which first_row is the first pending one. One at the front is granted whole where there is
  // room for a row, so that it never waits for more room than a step has.
  int64_t first_row = 0;
  std::span<const RowSpan> uncut = {};
  bool decoding() const { return num_pending == 1; }
};

// Rows granted to one sequence: the front of its pending ones.
struct StepGrant {
  int64_t num_rows = 0;  // 0: nothing in this step
  int64_t num_logits_rows = 0;
};

// Hands the budget out, one demand after the other.
class StepBudget {
 public:
  explicit StepBudget(const StepLimits& limits) : limits_(limits) {}

  // The rows this demand would get now, without taking them.
  StepGrant offer(const StepDemand& demand) const;
  StepGrant take(const StepDemand& demand);
  // Gives a grant back: its sequence lost its room before the step ran.
  void refund(const StepGrant& grant, const StepDemand& demand);

  int64_t rows_left() const { return limits_.max_num_batched_tokens - rows_; }
  int64_t seqs_left() const { return limits_.max_num_seqs - seqs_; }

 private:
  StepLimits limits_;
  int64_t rows_ = 0;
  int64_t seqs_ = 0;
  int64_t logits_rows_ = 0;
};

// Grants for running sequences, given most important first; grants[i] answers demands[i]. Decode rows go first, so that
// a long prompt takes only what they leave and delays them by one bounded step; prompts then share the rest in order.
std::vector<StepGrant> plan_running(StepBudget& budget, std::span<const StepDemand> demands);

}  // namespace headrace::schedule
