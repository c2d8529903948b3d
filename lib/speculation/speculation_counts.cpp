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

}  // namespace headrace::speculation
