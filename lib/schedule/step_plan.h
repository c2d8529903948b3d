// Which rows of which sequences one step computes, within its budget. Pure arithmetic: knows neither cache nor model.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "schedule/cost_model.h"

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
  // cost: outlives the budget; null where nothing limits time.
  explicit StepBudget(const StepLimits& limits, const CostModel* cost = nullptr) : limits_(limits), cost_(cost) {}

  // Prompts that are taken from here on add no more than ns to the step, or no more than min_rows rows (at least 1) at the
  // front of a context do; and one row however long it takes: otherwise they might never end.
  void limit_prompts(double ns, int64_t min_rows);

  // The rows this demand would get now, without taking them.
  StepGrant offer(const StepDemand& demand) const;
  StepGrant take(const StepDemand& demand);
  // A decoding sequence that was granted its row gets up to `rows` more from position first_row on, each with logits; half of
  // the rows that are left stay for others. Gives how many.
  int64_t extend(StepGrant& grant, int64_t first_row, int64_t rows);
  // A further continuation of such a sequence: `rows` rows from position first_row on, num_logits_rows of them with logits, or
  // none of them; of the room that extend() sees.
  StepGrant branch(int64_t first_row, int64_t rows, int64_t num_logits_rows);
  // Gives a grant back: its sequence lost its room before the step ran.
  void refund(const StepGrant& grant, const StepDemand& demand);
  void refund_branch(const StepGrant& grant, int64_t first_row);

  int64_t rows_left() const { return limits_.max_num_batched_tokens - rows_; }
  int64_t seqs_left() const { return limits_.max_num_seqs - seqs_; }
  // Whether not even a prompt's first row would be granted.
  bool full() const { return rows_left() < 1 || prompt_rows(0, 1) < 1; }
  // All that was taken.
  const StepWork& work() const { return work_; }

 private:
  void add(const StepGrant& grant, int64_t first_row);
  // Of up to `rows` rows of a prompt from first_row on, those that time allows.
  int64_t prompt_rows(int64_t first_row, int64_t rows) const;

  StepLimits limits_;
  const CostModel* cost_;
  double prompt_limit_ns_ = std::numeric_limits<double>::infinity();
  int64_t min_prompt_rows_ = 1;
  StepWork work_, prompt_work_;
  int64_t rows_ = 0;
  int64_t seqs_ = 0;
  int64_t logits_rows_ = 0;
};

}  // namespace headrace::schedule
