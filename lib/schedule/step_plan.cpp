#include "schedule/step_plan.h"

#include <algorithm>
#include <cmath>

namespace headrace::schedule {

namespace {

// The same rows, or those up to an uncut span, or to its end where it is the first.
int64_t without_cut(const StepDemand& demand, int64_t rows) {
  for (const RowSpan& span : demand.uncut) {
    const int64_t begin = span.begin - demand.first_row, end = span.end - demand.first_row;
    if (begin < rows && rows < end) return begin > 0 ? begin : end;
  }
  return rows;
}

}  // namespace

StepGrant StepBudget::offer(const StepDemand& demand) const {
  StepGrant grant;
  if (demand.num_pending < 1 || demand.slots > seqs_left()) return grant;
  int64_t rows = std::min(demand.num_pending, rows_left());
  const int64_t logits_left = limits_.max_logits_rows - logits_rows_;
  // Rows after the silent ones each hold a row of logits; the last pending one always does.
  const int64_t silent = std::min(demand.num_silent, demand.num_pending - 1);
  rows = std::min(rows, silent + std::max<int64_t>(logits_left, 0));
  if (!demand.decoding()) rows = prompt_rows(demand.first_row, rows);
  if (rows < 1) return grant;
  rows = without_cut(demand, rows);
  grant.num_rows = rows;
  grant.num_logits_rows = std::max<int64_t>(rows - silent, 0);
  return grant;
}

void StepBudget::add(const StepGrant& grant, int64_t first_row) {
  rows_ += grant.num_rows;
  logits_rows_ += grant.num_logits_rows;
  work_ += StepWork::of(first_row, grant.num_rows);
}

StepGrant StepBudget::take(const StepDemand& demand) {
  const StepGrant grant = offer(demand);
  if (grant.num_rows > 0) {
    add(grant, demand.first_row);
    seqs_ += demand.slots;
    if (!demand.decoding()) prompt_work_ += StepWork::of(demand.first_row, grant.num_rows);
  }
  return grant;
}

int64_t StepBudget::extend(StepGrant& grant, int64_t first_row, int64_t rows) {
  rows = std::clamp<int64_t>(std::min(rows_left() / 2, limits_.max_logits_rows - logits_rows_), 0, rows);
  add({rows, rows}, first_row);
  grant.num_rows += rows;
  grant.num_logits_rows += rows;
  return rows;
}

StepGrant StepBudget::branch(int64_t first_row, int64_t rows, int64_t num_logits_rows) {
  if (rows > rows_left() / 2 || num_logits_rows > limits_.max_logits_rows - logits_rows_) return {};
  const StepGrant grant{rows, num_logits_rows};
  add(grant, first_row);
  return grant;
}

void StepBudget::refund_branch(const StepGrant& grant, int64_t first_row) {
  rows_ -= grant.num_rows;
  logits_rows_ -= grant.num_logits_rows;
  work_ -= StepWork::of(first_row, grant.num_rows);
}

void StepBudget::refund(const StepGrant& grant, const StepDemand& demand) {
  if (grant.num_rows == 0) return;
  refund_branch(grant, demand.first_row);
  seqs_ -= demand.slots;
  if (!demand.decoding()) prompt_work_ -= StepWork::of(demand.first_row, grant.num_rows);
}

void StepBudget::limit_prompts(double ns, int64_t min_rows) {
  prompt_limit_ns_ = ns;
  min_prompt_rows_ = std::max<int64_t>(min_rows, 1);
}

int64_t StepBudget::prompt_rows(int64_t first_row, int64_t rows) const {
  if (cost_ == nullptr || std::isinf(prompt_limit_ns_)) return rows;
  const double limit_ns = std::max(prompt_limit_ns_, cost_->added_ns(StepWork::of(0, min_prompt_rows_)));
  const int64_t in_time = cost_->rows_within(first_row, rows, limit_ns - cost_->added_ns(prompt_work_));
  return std::min(rows, prompt_work_.rows > 0.0 ? in_time : std::max<int64_t>(in_time, 1));
}

}  // namespace headrace::schedule
