#include "speculation/speculator.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <queue>
#include <utility>

#include "speculation/verify_paths.h"

namespace headrace::speculation {
namespace {

constexpr double kFree = 0.002;  // of a step: what costs less is never switched off
constexpr double kKeep = 0.9;    // of averages, each step
// What a drafter may lose before it rests, in times of a token without guesses: at first, and when it is tried again. One that
// wins has no more to lose than kMost.
constexpr double kCredit = 2.0, kSecondCredit = 1.0, kMost = 4.0;
constexpr int32_t kFirstGuesses = 4;
constexpr int32_t kMostBranches = 4;  // guesses at one token
constexpr int32_t kShortestRest = 16, kLongestRest = 512;

// Of the best chain, chosen tokens that rather come than not: checking one is cheap beside a drafter's pass, not free.
std::vector<int32_t> hint_of(DraftTree guesses) {
  constexpr double kLikely = 0.4;
  guesses.keep_best_chain();
  std::vector<int32_t> out;
  double survival = 1.0;
  for (const DraftNode& node : guesses.nodes()) {
    survival *= static_cast<double>(node.confidence);
    if (node.distribution >= 0 || survival < kLikely) break;
    out.push_back(node.token);
  }
  return out;
}

}  // namespace

Speculator::Speculator(std::vector<std::shared_ptr<Drafter>> drafters, int32_t vocab_size, Clock clock, bool always)
    : drafters_(std::move(drafters)),
      acceptance_(drafters_.size()),
      draft_time_(drafters_.size()),
      vocab_size_(vocab_size),
      clock_(std::move(clock)),
      always_(always) {
  for (const auto& drafter : drafters_) names_.emplace_back(drafter->name());
  totals_.drafters.resize(drafters_.size());
  for (size_t d = 0; d < drafters_.size(); ++d) totals_.drafters[d].name = names_[d];
}

Result<DrafterSet> Speculator::parse(std::string_view text) const {
  if (text.empty() || text == "off") return DrafterSet{0};
  DrafterSet set = 0;
  if (text == "auto") {
    // What the n-grams find the suffixes find too.
    for (size_t i = 0; i < names_.size(); ++i) set |= names_[i] == "ngram" ? 0 : DrafterSet{1} << i;
    return set;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view name = text.substr(at, end - at);
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      std::string known = "off, auto";
      for (const std::string& one : names_) known += ", " + one;
      return invalid_argument("drafter", "\"{}\" is no drafter of this scheduler; those are {}", name.substr(0, 40),
                              known);
    }
    set |= DrafterSet{1} << (found - names_.begin());
    at = end + 1;
  }
  return set;
}

void Speculator::plan(std::span<DraftTurn> turns, StepCost& cost) {
  for (DraftTurn& turn : turns) {
    turn.guesses.clear();
    turn.num_verified = 0;
    turn.branches |= always_;
    turn.record->counts.chains_for_state = !turn.branches;
    turn.record->standings.resize(drafters_.size(), {{}, kCredit, 0, kShortestRest, false, false});
    std::vector<DrafterCounts>& counts = turn.record->counts.drafters;
    if (!counts.empty()) continue;
    counts.resize(drafters_.size());
    for (size_t d = 0; d < drafters_.size(); ++d) {
      if ((turn.record->drafters >> d & 1u) != 0) counts[d].name = names_[d];
    }
  }
  cost.plain_ns = rows_ns(cost.plain_rows, cost) + cost.pair_ns * cost.plain_pairs;
  std::vector<size_t> order(drafters_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t d) { return draft_time_[d].sequence_ns; });
  for (const size_t drafter : order) ask(drafter, turns, cost);
  for (DraftTurn& turn : turns) {
    if (turn.mask != nullptr) cut_at_mask(turn);
  }
  const double added_ns = choose(turns, cost);
  int64_t num_verified = 0;
  for (const DraftTurn& turn : turns) num_verified += turn.num_verified;
  cost.guess_ns = num_verified > 0 ? added_ns / static_cast<double>(num_verified) : 0.0;
  for (DraftTurn& turn : turns) {
    DraftState& state = turn.record->counts.state;
    const DraftState now = turn.num_verified > 0   ? DraftState::kDrafted
                           : !turn.guesses.empty() ? DraftState::kDidNotPay
                                                   : DraftState::kNoGuess;
    state = std::max(state, now);
  }
}

double Speculator::rows_ns(int64_t rows, const StepCost& cost) const {
  return verify_cost_.predict_ns(rows, cost.step_ns + cost.row_ns * static_cast<double>(rows));
}

double Speculator::gain_ns(DraftTree guesses, double token_ns, double row_ns) {
  guesses.keep_best_chain();
  double survival = 1.0, gain = 0.0, most = 0.0;
  for (const DraftNode& node : guesses.nodes()) {
    survival *= static_cast<double>(node.confidence);
    gain += survival * token_ns - row_ns;
    most = std::max(most, gain);
  }
  return most;
}

void Speculator::ask(size_t drafter, std::span<DraftTurn> turns, const StepCost& cost) {
  std::vector<DraftRequest> requests;
  std::vector<DraftTurn*> asking;
  std::vector<std::vector<int32_t>> hints(turns.size());
  DraftTime& time = draft_time_[drafter];
  const bool is_free = always_ || (time.sum_ns > 0.0 && time.sequence_ns < kFree * cost.plain_ns);
  // What rows cost is measured at several, of which the first may cost as much as all.
  constexpr int64_t kRowsEach = 4;
  const int64_t more = kRowsEach * static_cast<int64_t>(turns.size());
  const double row_ns =
      std::max(rows_ns(cost.plain_rows + more, cost) - rows_ns(cost.plain_rows, cost), 0.0) / static_cast<double>(more);
  const double token_ns = cost.plain_ns / static_cast<double>(std::max<int64_t>(cost.plain_rows, 1));
  for (DraftTurn& turn : turns) {
    if ((turn.record->drafters >> drafter & 1u) == 0 || turn.max_nodes < 1) continue;
    SequenceRecord::Standing& standing = turn.record->standings[drafter];
    if (standing.failed) continue;
    if (standing.rest > 0 && !is_free) {
      --standing.rest;
      continue;
    }
    // What its guesses take is not known before the first of them.
    const int32_t most = is_free || time.sum_nodes > 0.0 ? turn.max_nodes : std::min(turn.max_nodes, kFirstGuesses);
    DraftRequest request{turn.context, most, std::min(most, turn.max_depth), 1};
    if (turn.branches) request.max_branches = kMostBranches;
    if (!is_free && token_ns > 0.0) {
      request.worth =
          DraftWorth(acceptance_[drafter], standing.acceptance, token_ns, row_ns + time.node_ns(), turn.max_depth);
      // Where cheaper guesses promise as much, they are enough.
      if (!turn.guesses.empty() && gain_ns(turn.guesses, token_ns, row_ns) >= request.worth.gain_ns(time.tree_nodes))
        continue;
    }
    std::vector<int32_t>& hint = hints[requests.size()];
    if (!is_free) hint = hint_of(turn.guesses);
    request.hint = hint;
    requests.push_back(request);
    asking.push_back(&turn);
  }
  if (requests.empty()) return;
  std::vector<DraftTree> trees(requests.size());
  const int64_t started = clock_();
  const Status status = drafters_[drafter]->draft(requests, trees);
  const double took = static_cast<double>(std::max<int64_t>(clock_() - started, 0));
  const double each = took / static_cast<double>(trees.size());
  time.sequence_ns = kKeep * time.sequence_ns + (1.0 - kKeep) * each;
  double nodes = 0.0;
  for (const DraftTree& tree : trees) nodes += tree.depth();
  time.sum_ns = kKeep * time.sum_ns + took;
  time.sum_nodes = kKeep * time.sum_nodes + nodes;
  const double tree_nodes = nodes / static_cast<double>(trees.size());
  time.tree_nodes = std::max(tree_nodes, kKeep * time.tree_nodes + (1.0 - kKeep) * tree_nodes);
  for (size_t i = 0; i < asking.size(); ++i) {
    SequenceRecord& record = *asking[i]->record;
    record.counts.drafters[drafter].draft_ns += static_cast<int64_t>(each);
    totals_.drafters[drafter].draft_ns += static_cast<int64_t>(each);
    record.counts.saved_ns -= each;
    totals_.saved_ns -= each;
    SequenceRecord::Standing& standing = record.standings[drafter];
    standing.failed = !status.ok();
    // That it read the prompt first says nothing of its guesses.
    if (standing.guessed && token_ns > 0.0) standing.credit -= each / token_ns;
    standing.guessed = standing.guessed || !trees[i].empty();
    if (status.ok()) adopt(drafter, *asking[i], trees[i]);
  }
}

// Merges what a drafter gave, with what its claims are worth.
void Speculator::adopt(size_t drafter, DraftTurn& turn, DraftTree& given) const {
  std::vector<bool> valid(given.nodes().size());
  const SequenceAcceptance& acceptance = turn.record->standings[drafter].acceptance;
  for (size_t i = 0; i < valid.size(); ++i) {
    DraftNode& node = given.nodes()[i];
    valid[i] = node.token >= 0 && node.token < vocab_size_;
    node.confidence = static_cast<float>(acceptance.adjust(acceptance_[drafter].estimate(node.claimed, node.depth)));
  }
  given.prune(valid);
  // Each drafter's nodes have room: which are the best is chosen when all have spoken.
  const int32_t room = turn.guesses.size() + given.size();
  turn.guesses.merge(given, static_cast<int32_t>(drafter), room, turn.max_depth);
}

// Of the tree, what the mask lets come. A drawn token stays where it is the first that may not: that it is refused is part
// of its verification.
void Speculator::cut_at_mask(DraftTurn& turn) {
  const auto nodes = turn.guesses.nodes();
  std::vector<bool> keep(nodes.size(), false);
  const auto walk = [&](const auto& self, int32_t parent) -> void {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].parent != parent) continue;
      keep[i] = nodes[i].distribution >= 0;
      if (!turn.mask->advance(nodes[i].token)) continue;
      keep[i] = true;
      self(self, static_cast<int32_t>(i));
      turn.mask->retreat(1);
    }
  };
  walk(walk, -1);
  turn.guesses.prune(keep);
}

// The step gives plain_rows tokens and takes plain_ns. Each guess adds the probability that its token comes, and the time of its
// rows: guesses are taken in the order of what they add in a unit of time, and as many as make tokens per time the most.
Speculator::Choice Speculator::choose(std::span<const DraftTurn> turns, const StepCost& cost, bool chains) const {
  struct Offer {
    double survival = 0.0, pairs = 0.0;
    int64_t rows = 0;
    double ns = 0.0;
    size_t turn = 0;
    int32_t node = 0;
    bool operator<(const Offer& other) const {
      const double mine = survival * other.ns, theirs = other.survival * ns;
      if (mine != theirs) return mine < theirs;
      return turn != other.turn ? turn > other.turn : node > other.node;
    }
  };
  struct Open {
    std::vector<bool> allowed;
    std::vector<bool> goes_on;  // a child of the node was taken; the root's last
    bool drawn = false;
    int32_t num_taken = 0;
  };
  Choice choice;
  choice.ns = cost.plain_ns;
  choice.tokens_per_ns = cost.plain_ns > 0.0 ? static_cast<double>(cost.plain_rows) / cost.plain_ns : 0.0;
  std::vector<Open> open(turns.size());
  std::vector<std::pair<size_t, int32_t>> taken;  // turns and nodes
  size_t num_chosen = 0;                          // of them
  std::priority_queue<Offer> offers;
  bool drawn = false;
  // What a node costs beside those that were taken before it.
  const auto offer_of = [&](size_t t, int32_t i, double survival) {
    const DraftTree& tree = turns[t].guesses;
    const DraftNode& node = tree.nodes()[static_cast<size_t>(i)];
    const size_t parent = node.parent < 0 ? tree.nodes().size() : static_cast<size_t>(node.parent);
    Offer offer{survival, 0.0, rows_of_guess(node, open[t].goes_on[parent]), 0.0, t, i};
    const double last = static_cast<double>(turns[t].context.tokens.size()) + node.depth - 1;
    const auto rows = static_cast<double>(offer.rows);
    offer.pairs = rows * (last - (rows - 1.0) / 2.0);
    offer.ns = cost.row_ns * rows + cost.pair_ns * offer.pairs;
    return offer;
  };
  // The children of a node, -1 the root. Drawn siblings are tried one after the other.
  const auto offer_children = [&](size_t t, int32_t parent, double survival, int32_t behind) {
    const auto nodes = turns[t].guesses.nodes();
    for (int32_t i = behind + 1; i < turns[t].guesses.size(); ++i) {
      const DraftNode& node = nodes[static_cast<size_t>(i)];
      if (node.parent != parent || !open[t].allowed[static_cast<size_t>(i)]) continue;
      drawn = drawn || node.distribution >= 0;
      offers.push(offer_of(t, i, survival * static_cast<double>(node.confidence)));
      if (open[t].drawn) return;
    }
  };
  for (size_t t = 0; t < turns.size(); ++t) {
    const auto size = static_cast<size_t>(turns[t].guesses.size());
    open[t].allowed = chains || !turns[t].branches ? turns[t].guesses.best_chain() : std::vector<bool>(size, true);
    open[t].goes_on.resize(size + 1, false);
    open[t].drawn = turns[t].guesses.has_drawn();
    if (turns[t].max_nodes > 0) offer_children(t, -1, 1.0, -1);
  }
  double tokens = static_cast<double>(cost.plain_rows), pairs_ns = cost.pair_ns * cost.plain_pairs;
  int64_t num_rows = cost.plain_rows;
  while (!offers.empty()) {
    Offer offer = offers.top();
    offers.pop();
    const size_t t = offer.turn;
    if (open[t].num_taken >= turns[t].max_nodes) continue;
    const DraftNode node = turns[t].guesses.nodes()[static_cast<size_t>(offer.node)];
    const size_t parent = node.parent < 0 ? open[t].allowed.size() : static_cast<size_t>(node.parent);
    if (offer.rows != rows_of_guess(node, open[t].goes_on[parent])) {
      // A sibling was taken meanwhile.
      offers.push(offer_of(t, offer.node, offer.survival));
      continue;
    }
    open[t].goes_on[parent] = true;
    ++open[t].num_taken;
    taken.emplace_back(t, offer.node);
    tokens += offer.survival;
    pairs_ns += cost.pair_ns * offer.pairs;
    num_rows += offer.rows;
    const double ns = rows_ns(num_rows, cost) + pairs_ns;
    if (always_ || (ns > 0.0 && tokens / ns > choice.tokens_per_ns)) {
      choice.tokens_per_ns = tokens / ns;
      choice.ns = ns;
      num_chosen = taken.size();
    } else if (drawn) {
      // Whether a drawn token is verified must not depend on those behind it: the distribution would not be the model's.
      break;
    }
    offer_children(t, offer.node, offer.survival, offer.node);
    if (open[t].drawn) {
      const double before = node.confidence > 0.0f ? offer.survival / static_cast<double>(node.confidence) : 0.0;
      offer_children(t, node.parent, before, offer.node);
    }
  }
  choice.nodes.resize(turns.size());
  taken.resize(num_chosen);
  for (const auto& [t, node] : taken) choice.nodes[t].push_back(node);
  return choice;
}

// Of trees and their best chains, what gives more tokens per time.
double Speculator::choose(std::span<DraftTurn> turns, const StepCost& cost) const {
  if (verify_cost_.unknown() && !always_) return 0.0;
  Choice choice = choose(turns, cost, false);
  const bool branches =
      std::ranges::any_of(turns, [](const DraftTurn& turn) { return turn.branches && !turn.guesses.is_chain(); });
  const bool drawn = std::ranges::any_of(turns, [](const DraftTurn& turn) { return turn.guesses.has_drawn(); });
  // What was drawn must not decide whether it is verified, which a choice between two finished plans would let it.
  if (branches && !drawn && !always_) {
    Choice chains = choose(turns, cost, true);
    if (chains.tokens_per_ns >= choice.tokens_per_ns) choice = std::move(chains);
  }
  for (size_t t = 0; t < turns.size(); ++t) {
    turns[t].guesses.put_first(choice.nodes[t]);
    turns[t].num_verified = static_cast<int32_t>(choice.nodes[t].size());
  }
  return choice.ns - cost.plain_ns;
}

void Speculator::learn(SequenceRecord& record, const DraftTree& guesses, int32_t num_verified,
                       std::span<const int32_t> drawn, const StepCost& cost) {
  if (guesses.empty() || drawn.empty()) return;
  std::vector<double> value(drafters_.size(), 0.0);
  const double token_ns = cost.plain_ns / static_cast<double>(std::max<int64_t>(cost.plain_rows, 1));
  const auto nodes = guesses.nodes();
  std::vector<int32_t> came = {-1};  // the root, and at each depth the node that the tokens drawn go along
  for (size_t i = 0; i < nodes.size(); ++i) {
    const DraftNode& node = nodes[i];
    const bool verified = static_cast<int32_t>(i) < num_verified;
    const auto drafter = static_cast<size_t>(node.drafter), depth = static_cast<size_t>(node.depth);
    const bool known = depth <= drawn.size() && depth <= came.size() && node.parent == came[depth - 1];
    // Of siblings with that token the first is the one that stands.
    const bool stands = known && depth == came.size() && drawn[depth - 1] == node.token;
    if (stands) came.push_back(static_cast<int32_t>(i));
    if (known) {
      // One that was not verified is measured too: the next token is known.
      const bool likeliest = std::ranges::none_of(nodes, [&](const DraftNode& other) {
        return other.parent == node.parent && other.drafter == node.drafter && other.claimed > node.claimed;
      });
      const double estimate = acceptance_[drafter].estimate(node.claimed, node.depth);
      record.standings[drafter].acceptance.record(estimate, stands);
      acceptance_[drafter].record(node.claimed, node.depth, stands, likeliest);
    }
    if (!verified) continue;
    record.counts.drafters[drafter].count(node.depth, stands);
    totals_.drafters[drafter].count(node.depth, stands);
    // A guess that came true spares a token's part of a step where a token was drawn behind it.
    value[drafter] += (stands && depth < drawn.size() ? token_ns : 0.0) - cost.guess_ns;
  }
  if (num_verified > 0) {
    ++record.counts.steps;
    ++totals_.steps;
  }
  for (size_t d = 0; d < drafters_.size(); ++d) {
    record.counts.saved_ns += value[d];
    totals_.saved_ns += value[d];
    SequenceRecord::Standing& standing = record.standings[d];
    if (token_ns > 0.0) standing.credit = std::min(standing.credit + value[d] / token_ns, kMost);
    if (standing.credit >= kMost) standing.next_rest = kShortestRest;
    if (standing.credit >= 0.0) continue;
    // It does not pay: it rests, and longer each time.
    standing.rest = standing.next_rest;
    standing.next_rest = std::min(4 * standing.next_rest, kLongestRest);
    standing.credit = kSecondCredit;
  }
}

std::vector<size_t> Speculator::readers(const SequenceRecord& record) const {
  std::vector<size_t> out;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if ((record.drafters >> d & 1u) != 0 && !drafters_[d]->hidden_layers().empty()) out.push_back(d);
  }
  return out;
}

void Speculator::observe(const SequenceRecord& record, const ObservedRows& rows, std::span<const float* const> hidden) {
  size_t reader = 0;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if ((record.drafters >> d & 1u) == 0) continue;
    ObservedRows seen = rows;
    if (!drafters_[d]->hidden_layers().empty() && reader < hidden.size()) seen.hidden = hidden[reader++];
    // What a drafter failed to see it guesses without: its guesses may be worse, never the text.
    (void)drafters_[d]->observe({&seen, 1});
  }
}

void Speculator::end(const DraftContext& context, const SequenceRecord& record) noexcept {
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if ((record.drafters >> d & 1u) == 0) continue;
    try {
      drafters_[d]->end(context);
    } catch (const std::bad_alloc&) {
    }
  }
}

}  // namespace headrace::speculation
