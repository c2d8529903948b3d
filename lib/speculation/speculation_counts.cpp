#include "speculation/speculation_counts.h"

#include <algorithm>

namespace headrace::speculation {

const char* draft_state_name(DraftState state) {
  switch (state) {
    case DraftState::kOff: return "off";
    case DraftState::kNoGuess: return "no_guess";
    case DraftState::kDidNotPay: return "did_not_pay";
    case DraftState::kDrafted: return "drafted";
  }
  return "";
}

void DrafterCounts::count(int32_t depth, bool was_accepted) {
  const size_t at = std::min(static_cast<size_t>(std::max(depth, 1)), kCountedDepths) - 1;
  ++drafted;
  ++drafted_at[at];
  if (!was_accepted) return;
  ++accepted;
  ++accepted_at[at];
}

DrafterCounts& DrafterCounts::operator+=(const DrafterCounts& other) {
  drafted += other.drafted;
  accepted += other.accepted;
  draft_ns += other.draft_ns;
  for (size_t i = 0; i < kCountedDepths; ++i) {
    drafted_at[i] += other.drafted_at[i];
    accepted_at[i] += other.accepted_at[i];
  }
  return *this;
}

uint64_t SpeculationCounts::drafted() const {
  uint64_t sum = 0;
  for (const DrafterCounts& drafter : drafters) sum += drafter.drafted;
  return sum;
}

uint64_t SpeculationCounts::accepted() const {
  uint64_t sum = 0;
  for (const DrafterCounts& drafter : drafters) sum += drafter.accepted;
  return sum;
}

SpeculationCounts& SpeculationCounts::operator+=(const SpeculationCounts& other) {
  steps += other.steps;
  saved_ns += other.saved_ns;
  if (drafters.size() < other.drafters.size()) drafters.resize(other.drafters.size());
  for (size_t i = 0; i < other.drafters.size(); ++i) drafters[i] += other.drafters[i];
  return *this;
}

}  // namespace headrace::speculation
