#include "speculation/suffix_drafter.h"

#include <algorithm>
#include <queue>

namespace headrace::speculation {
namespace {

constexpr size_t kLongestContext = 32;   // tokens that are looked for in what other sequences left
constexpr size_t kPromptContext = 8;     // tokens of the prompt that are kept in front of an output
constexpr double kLeastSurvival = 0.02;  // of a guess that is still made

// What comes behind a node, and how likely the node is.
struct Open {
  double survival = 1.0;
  int32_t parent = -1, token = 0, depth = 1;
  float claimed = 0.0f;
  SuffixAutomaton::Match run;  // with the token
  int32_t number = 0;          // of equals the first comes first
  bool operator<(const Open& other) const {
    return survival != other.survival ? survival < other.survival : number > other.number;
  }
};

// The run's most frequent continuations, the likeliest guess of all that follow those taken each time.
void continue_run(const SuffixAutomaton& automaton, SuffixAutomaton::Match from, const DraftRequest& request,
                  DraftTree& tree) {
  std::priority_queue<Open> open;
  int32_t number = 0;
  const auto open_behind = [&](int32_t parent, int32_t depth, double survival, SuffixAutomaton::Match run) {
    if (depth > request.max_depth) return;
    const auto most = static_cast<size_t>(std::max(request.max_branches, 1));
    auto nexts = automaton.frequent(run.state, most);
    // At the text's very end nothing follows the run, but maybe a shorter one: a period goes on.
    while (nexts.empty() && run.length > 0) {
      run = automaton.shorter(run);
      nexts = automaton.frequent(run.state, most);
    }
    if (run.length == 0) return;
    for (const SuffixAutomaton::Next& next : nexts) {
      // The longer the run and the more often it came, the more its counts say.
      const double seen = next.count / (next.total + 0.3), specific = run.length / (run.length + 1.0);
      const double so_far = survival * seen * specific;
      // One token that no sequence has parts two texts.
      if (next.token < 0 || so_far < kLeastSurvival) {
        if (&next == &nexts.front()) return;
        continue;
      }
      open.push({so_far,
                 parent,
                 next.token,
                 depth,
                 static_cast<float>(seen * specific),
                 {next.state, run.length + 1},
                 number++});
    }
  };
  open_behind(-1, 1, 1.0, from);
  while (!open.empty() && tree.size() < request.max_nodes) {
    const Open best = open.top();
    open.pop();
    open_behind(tree.add(best.parent, best.token, best.claimed), best.depth + 1, best.survival, best.run);
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
    const SuffixAutomaton& automaton = own(context).automaton;
    continue_run(automaton, automaton.repeated(), requests[r], trees[r]);
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
      continue_run(*part, run, requests[r], other);
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
