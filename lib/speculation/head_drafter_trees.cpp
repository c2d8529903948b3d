// Branches of a head's guesses: depth by depth, behind the likeliest ones.
#include <algorithm>
#include <utility>

#include "speculation/head_drafter_line.h"

namespace headrace::speculation {

// A guess behind which there may be others.
struct HeadDrafter::Tip {
  Line* line = nullptr;
  int32_t node = 0;
  double survival = 0.0;
  std::vector<float> features = {};  // [depth, hidden_size] of the rows of the guesses up to it
  KvSequence kv = {};                // in the pass: the sequence's rows, and room for those
};

// The guesses that row `row` of the pass gives behind a node whose rows have the features `before`.
void HeadDrafter::add_tips(Line& line, int32_t node, size_t row, const std::vector<float>& before,
                           std::vector<Tip>& tips) {
  const auto vocab_size = static_cast<size_t>(head_->vocab_size());
  const int64_t width = head_->hidden_size();
  const auto first = line.chain.branch(node, {logits_.data() + row * vocab_size, vocab_size}, stats_[row]);
  if (!first) return;
  for (int32_t child = *first; child < line.tree.size(); ++child) {
    if (!line.chain.goes_on_behind(child)) continue;
    if (line.end() + line.tree.nodes()[static_cast<size_t>(child)].depth > head_->longest_sequence()) continue;
    Tip tip{&line, child, line.tree.survival(child), before};
    const auto next = next_.begin() + static_cast<ptrdiff_t>(row) * width;
    tip.features.insert(tip.features.end(), next, next + width);
    tips.push_back(std::move(tip));
  }
}

// Of each line the likeliest, as many as one token may have guesses, and of all no more rows than a pass takes.
std::vector<HeadDrafter::Tip> HeadDrafter::keep_best(std::vector<Tip> tips) const {
  std::ranges::stable_sort(tips, std::greater<>(), &Tip::survival);
  std::vector<Tip> kept;
  int64_t rows = 0;
  for (Tip& tip : tips) {
    const auto of_line = std::ranges::count(kept, tip.line, &Tip::line);
    if (of_line >= tip.line->chain.request().max_branches) continue;
    rows += static_cast<int64_t>(tip.features.size()) / head_->hidden_size();
    if (rows > options_.max_rows) break;
    kept.push_back(std::move(tip));
  }
  return kept;
}

// One pass of the rows of guesses behind each tip's sequence: earlier ones are computed again, since the head's rows of guesses are not
// kept. Leaves those that found room.
Status HeadDrafter::run_tips(std::vector<Tip>& tips) {
  batch_.clear();
  features_.clear();
  std::vector<Tip> ready;
  for (Tip& tip : tips) {
    const auto nodes = tip.line->tree.nodes();
    std::vector<int32_t> tokens;
    for (int32_t at = tip.node; at >= 0; at = nodes[static_cast<size_t>(at)].parent) {
      tokens.push_back(nodes[static_cast<size_t>(at)].token);
    }
    std::ranges::reverse(tokens);
    const int64_t begin = tip.line->end();
    tip.kv = cache_->fork(tip.line->sequence.kv);
    if (!reserve(tip.kv, begin + static_cast<int64_t>(tokens.size()))) continue;
    add_rows(tip.kv, begin, tokens, true);
    features_.insert(features_.end(), tip.features.begin(), tip.features.end());
    ready.push_back(std::move(tip));
  }
  tips = std::move(ready);
  return tips.empty() ? Status() : run();
}

Status HeadDrafter::grow_trees(const std::vector<Line*>& lines) {
  std::vector<Tip> tips;
  for (size_t row = 0; row < lines.size(); ++row) add_tips(*lines[row], -1, row, {}, tips);
  for (;;) {
    tips = keep_best(std::move(tips));
    HEADRACE_RETURN_IF_ERROR(run_tips(tips));
    if (tips.empty()) break;
    std::vector<Tip> next;
    for (size_t row = 0; row < tips.size(); ++row) {
      tips[row].kv = KvSequence();
      add_tips(*tips[row].line, tips[row].node, row, tips[row].features, next);
    }
    tips = std::move(next);
  }
  for (Line* line : lines) line->chain.rerank();
  return {};
}

}  // namespace headrace::speculation
