#include "schedule/step_plan.h"

#include <algorithm>

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
  if (rows < 1) return grant;
  rows = without_cut(demand, rows);
  grant.num_rows = rows;
  grant.num_logits_rows = std::max<int64_t>(rows - silent, 0);
  return grant;
}

StepGrant StepBudget::take(const StepDemand& demand) {
  const StepGrant grant = offer(demand);
  if (grant.num_rows > 0) {
    rows_ += grant.num_rows;
    seqs_ += demand.slots;
    logits_rows_ += grant.num_logits_rows;
  }
  return grant;
}

void StepBudget::refund(const StepGrant& grant, const StepDemand& demand) {
  if (grant.num_rows == 0) return;
  rows_ -= grant.num_rows;
  seqs_ -= demand.slots;
  logits_rows_ -= grant.num_logits_rows;
}

std::vector<StepGrant> plan_running(StepBudget& budget, std::span<const StepDemand> demands) {
  std::vector<StepGrant> grants(demands.size());
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < demands.size(); ++i) {
      if (demands[i].decoding() == decoding) grants[i] = budget.take(demands[i]);
    }
  }
  return grants;
}

}  // namespace headrace::schedule
