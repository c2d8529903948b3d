#include "speculation/suffix_drafter.h"

#include <algorithm>

namespace headrace::speculation {
namespace {

constexpr size_t kLongestContext = 32;   // tokens that are looked for in what other sequences left
constexpr size_t kPromptContext = 8;     // tokens of the prompt that are kept in front of an output
constexpr double kLeastSurvival = 0.02;  // of a guess that is still made

// The run's most frequent continuation, as a chain.
void continue_run(const SuffixAutomaton& automaton, SuffixAutomaton::Match run, int32_t length, DraftTree& tree) {
  double survival = 1.0;
  for (int32_t i = 0; i < length; ++i) {
    SuffixAutomaton::Next next = automaton.most_frequent(run.state);
    // At the text's very end nothing follows the run, but maybe a shorter one: a period goes on.
    while (next.count == 0 && run.length > 0) {
      run = automaton.shorter(run);
      next = automaton.most_frequent(run.state);
    }
    if (run.length == 0 || next.token < 0) return;
    // The longer the run and the more often it came, the more its counts say.
    const double seen = next.count / (next.total + 0.3), specific = run.length / (run.length + 1.0);
    survival *= seen * specific;
    if (survival < kLeastSurvival) return;
    tree.add(i - 1, next.token, static_cast<float>(seen * specific));
    run = {next.state, run.length + 1};
  }
}

double expected(const DraftTree& tree) {
  double sum = 0.0;
  for (int32_t i = 0; i < tree.size(); ++i) sum += tree.survival(i);
  return sum;
}

}  // namespace

SuffixDrafter::Own& SuffixDrafter::own(const DraftContext& context) {
  Own& own = sequences_[context.id];
  while (own.num_appended < context.tokens.size()) own.automaton.append(context.tokens[own.num_appended++]);
  return own;
}

Status SuffixDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  DraftTree other;
  for (size_t r = 0; r < requests.size(); ++r) {
    const DraftContext& context = requests[r].context;
    const int32_t length = std::min(requests[r].max_nodes, requests[r].max_depth);
    const SuffixAutomaton& automaton = own(context).automaton;
    continue_run(automaton, automaton.repeated(), length, trees[r]);
    const auto found = learned_.find(context.scope);
    if (found == learned_.end()) continue;
    found->second.last_used = ++clock_;
    for (const SuffixAutomaton* part : {found->second.newer.get(), found->second.older.get()}) {
      if (part == nullptr) continue;
      SuffixAutomaton::Match run;
      for (const int32_t token : context.tokens.last(std::min(context.tokens.size(), kLongestContext))) {
        run = part->follow(run, token);
      }
      other.clear();
      continue_run(*part, run, length, other);
      if (expected(other) > expected(trees[r])) std::swap(other, trees[r]);
    }
  }
  return Status();
}

void SuffixDrafter::end(const DraftContext& context) {
  sequences_.erase(context.id);
  if (context.secret) return;
  const auto from =
      static_cast<size_t>(std::max<int64_t>(context.prompt_size - static_cast<int64_t>(kPromptContext), 0));
  if (max_tokens_ < 2 || context.tokens.size() <= static_cast<size_t>(context.prompt_size)) return;
  if (learned_.size() >= max_scopes_ && learned_.find(context.scope) == learned_.end()) {
    learned_.erase(std::min_element(learned_.begin(), learned_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    }));
  }
  Learned& learned = learned_[std::string(context.scope)];
  learned.last_used = ++clock_;
  std::span<const int32_t> tokens = context.tokens.subspan(from);
  const auto room = static_cast<size_t>(max_tokens_ / 2);
  if (tokens.size() > room - 1) tokens = tokens.last(room - 1);
  if (learned.newer && learned.newer->size() + static_cast<int64_t>(tokens.size()) >= static_cast<int64_t>(room)) {
    learned.older = std::move(learned.newer);
    learned.newer.reset();
  }
  if (!learned.newer) learned.newer = std::make_shared<SuffixAutomaton>();
  // A token that no sequence has parts the texts.
  learned.newer->append(INT32_MIN + learned.num_texts++ % (1 << 30));
  for (const int32_t token : tokens) learned.newer->append(token);
}

}  // namespace headrace::speculation
