// What became of guesses, of a request or of all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::speculation {

// Why a sequence was not guessed at, or no more.
enum class DraftState : int32_t {
  kOff = 0,    // nobody was asked to
  kNoGuess,    // no drafter had one
  kDidNotPay,  // there were guesses, none worth its row
  kDrafted,
};

// "off", "no_guess", "did_not_pay", "drafted".
const char* draft_state_name(DraftState state);

// Depths beyond are counted with the last.
inline constexpr size_t kCountedDepths = 16;

struct DrafterCounts {
  std::string name;                                                        // "": the request did not ask for it
  uint64_t drafted = 0;                                                    // guesses that were verified
  uint64_t accepted = 0;                                                   // of those
  std::array<uint64_t, kCountedDepths> drafted_at = {}, accepted_at = {};  // by depth, from 1
  int64_t draft_ns = 0;                                                    // spent on guessing

  void count(int32_t depth, bool was_accepted);
};

struct SpeculationCounts {
  DraftState state = DraftState::kOff;
  // Of a request: guesses beside a chain's were left out, for its model has a recurrent state.
  bool chains_for_state = false;
  uint64_t steps = 0;                   // with guesses to verify
  std::vector<DrafterCounts> drafters;  // in the order of Speculator::names(); empty: nobody was asked
  // Won (or below 0: lost) against plain decoding, as the scheduler's cost model sees it: the steps that accepted guesses
  // saved, less what rows of guesses and guessing took.
  double saved_ns = 0.0;

  uint64_t drafted() const;
  uint64_t accepted() const;
};

}  // namespace headrace::speculation
