// Which guesses a step verifies: asks the drafters, merges what they give, and keeps what is worth its rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sampling/token_mask.h"
#include "speculation/draft_tree.h"
#include "speculation/drafter.h"
#include "speculation/measured_acceptance.h"
#include "speculation/speculation_counts.h"
#include "speculation/verify_cost.h"

namespace headrace::speculation {

// Drafters by their place in Speculator::names(), one bit each.
using DrafterSet = uint32_t;

// What speculation keeps of one sequence.
struct SequenceRecord {
  DrafterSet drafters = 0;  // that the request asked for
  SpeculationCounts counts;

  // Of each drafter: how its guesses fare here, and whether asking it pays. Filled by the speculator.
  struct Standing {
    SequenceAcceptance acceptance;
    double credit = 0.0;    // what it may lose before it rests, in times of a token without guesses
    int32_t rest = 0;       // steps until it is asked again; 0: it is on
    int32_t next_rest = 0;  // how long the next one is
    bool guessed = false, failed = false;
  };
  std::vector<Standing> standings;
};

// A sequence that decodes in the step being planned.
struct DraftTurn {
  DraftContext context;
  SequenceRecord* record = nullptr;
  TokenMask* mask = nullptr;  // at the context's end, or null
  int32_t max_nodes = 0;      // guesses to be verified, at most; 0: none
  int32_t max_depth = 0;      // positions that they may reach
  // Whether a path beside the first costs no more than its rows; else, of models with a recurrent state, the best chain is
  // verified.
  bool branches = true;
  // Out: guesses, a tree; the first num_verified of them are to be verified.
  DraftTree guesses;
  int32_t num_verified = 0;
};

// What the step takes, as the scheduler predicts it, and what it does to that.
struct StepCost {
  // Without guesses: rows, each of which gives a token, and pairs of them and a position.
  int64_t plain_rows = 0;
  double plain_pairs = 0.0;
  // By the linear model: of any step, of a row and of a pair.
  double step_ns = 0.0, row_ns = 0.0, pair_ns = 0.0;
  // Out: what the step would take without guesses, and what a verified guess added on average.
  double plain_ns = 0.0, guess_ns = 0.0;
};

// One thread at a time, but for names() and parse(), which never change.
class Speculator {
 public:
  using Clock = std::function<int64_t()>;  // nanoseconds
  static constexpr size_t kMaxDrafters = 32;

  // At most kMaxDrafters, each name once. always: whether guesses pay is not asked.
  Speculator(std::vector<std::shared_ptr<Drafter>> drafters, int32_t vocab_size, Clock clock, bool always = false);

  const std::vector<std::string>& names() const { return names_; }
  // "off", "auto", or names with commas between. kInvalidArgument where one is not known.
  Result<DrafterSet> parse(std::string_view names) const;

  // Fills the turns' guesses.
  void plan(std::span<DraftTurn> turns, StepCost& cost);
  // A step without prompts took so long, without its attention.
  void measured(int64_t rows, double ns) { verify_cost_.observe(rows, ns); }
  // The step drew these tokens for a sequence that had the guesses: all but the last stood among the verified ones, each a child
  // of the one before.
  void learn(SequenceRecord& record, const DraftTree& guesses, int32_t num_verified, std::span<const int32_t> drawn,
             const StepCost& cost);
  // Those of the request's drafters that see hidden states, ascending, and of which layers.
  std::vector<size_t> readers(const SequenceRecord& record) const;
  std::span<const int32_t> hidden_layers(size_t drafter) const { return drafters_[drafter]->hidden_layers(); }
  // Rows of a sequence stand. hidden: what each of its readers is to be given of them, in their order.
  void observe(const SequenceRecord& record, const ObservedRows& rows, std::span<const float* const> hidden);
  // Never fails: where memory is short, what was learned is lost.
  void end(const DraftContext& context, const SequenceRecord& record) noexcept;
  // Of all sequences so far.
  const SpeculationCounts& totals() const { return totals_; }

 private:
  struct DraftTime {
    double sequence_ns = 0.0;              // of all guesses at one sequence
    double sum_ns = 0.0, sum_nodes = 0.0;  // fading; nodes one behind the other
    double tree_nodes = 0.0;               // likewise, that it gave for one sequence at most
    double node_ns() const { return sum_nodes > 0.0 ? sum_ns / sum_nodes : 0.0; }
  };

  // Of a step of so many rows, without its attention.
  double rows_ns(int64_t rows, const StepCost& cost) const;
  // What verifying the best chain of guesses wins, where a token without guesses takes token_ns.
  static double gain_ns(DraftTree guesses, double token_ns, double row_ns);
  void ask(size_t drafter, std::span<DraftTurn> turns, const StepCost& cost);
  void adopt(size_t drafter, DraftTurn& turn, DraftTree& given) const;
  static void cut_at_mask(DraftTurn& turn);
  // Gives the time that the chosen guesses add.
  double choose(std::span<DraftTurn> turns, const StepCost& cost) const;
  // What of the turns' guesses is worth its rows.
  struct Choice {
    std::vector<std::vector<int32_t>> nodes;  // of each turn, in the order they were taken
    double tokens_per_ns = 0.0, ns = 0.0;     // of the step with them
  };
  Choice choose(std::span<const DraftTurn> turns, const StepCost& cost, bool chains) const;

  std::vector<std::shared_ptr<Drafter>> drafters_;
  std::vector<std::string> names_;
  std::vector<MeasuredAcceptance> acceptance_;  // of each drafter
  std::vector<DraftTime> draft_time_;           // of each, lately
  VerifyCost verify_cost_;
  const int32_t vocab_size_;
  const Clock clock_;
  const bool always_;
  SpeculationCounts totals_;
};

}  // namespace headrace::speculation
