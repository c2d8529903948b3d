// A drafter of tests: it is told what comes, and guesses that, something else, or nonsense.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "sampling/philox.h"
#include "speculation/drafter.h"

namespace headrace::speculation {

enum class Guessing {
  kRight,      // all that comes
  kPartly,     // each token right with 2 in 3
  kWrong,      // never right
  kRandom,     // any tokens
  kTooMuch,    // more and deeper than allowed, with tokens that no vocabulary has
  kTree,       // siblings, the right one among them or not
  kDrawn,      // drawn evenly from four tokens, one of them right
  kFailing,    // an error
  kDrawnTree,  // two drawn likewise, without replacement, behind each of the guesses at the first two tokens
};
inline constexpr Guessing kAllGuessing[] = {Guessing::kRight,  Guessing::kPartly,  Guessing::kWrong,
                                            Guessing::kRandom, Guessing::kTooMuch, Guessing::kTree,
                                            Guessing::kDrawn,  Guessing::kFailing, Guessing::kDrawnTree};

// Thread rule as of any drafter.
class GuessingDrafter : public Drafter {
 public:
  // The token after these, or below 0 where it is not known.
  using Oracle = std::function<int32_t(std::span<const int32_t> tokens)>;

  GuessingDrafter(std::string name, Guessing guessing, int32_t vocab_size, Oracle oracle)
      : name_(std::move(name)), guessing_(guessing), vocab_size_(vocab_size), oracle_(std::move(oracle)) {}

  std::string_view name() const override { return name_; }

  Status observe(std::span<const ObservedRows> rows) override {
    for (const ObservedRows& row : rows) {
      int64_t& seen = seen_[row.context.id];
      // Rows follow each other, or are computed again.
      if (row.first > seen && seen > 0) gaps = true;
      if (row.first + row.count > static_cast<int64_t>(row.context.tokens.size())) gaps = true;
      seen = row.first + row.count;
    }
    return Status();
  }

  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    if (guessing_ == Guessing::kFailing) return internal_error("guess", "told to fail");
    for (size_t r = 0; r < requests.size(); ++r) {
      guess(requests[r], trees[r]);
      num_nodes += trees[r].size();
      if (on_nodes) on_nodes(trees[r].size());
    }
    return Status();
  }

  void end(const DraftContext& context) override {
    seen_.erase(context.id);
    ++num_ended;
  }

  bool gaps = false;
  int64_t num_ended = 0, num_nodes = 0;
  std::function<void(int32_t count)> on_nodes;  // that were guessed: they may take time
  size_t num_live() const { return seen_.size(); }

 private:
  uint64_t chance(const DraftContext& context, int32_t depth, uint32_t lane) const {
    const uint64_t key[] = {context.id.request, context.tokens.size(), static_cast<uint64_t>(depth), lane};
    return hash64(key, sizeof key);
  }

  // Drawn behind a node, and behind what was drawn.
  void draw(const DraftRequest& request, std::vector<int32_t>& tokens, int32_t parent, int32_t depth, DraftTree& tree) {
    if (depth > std::min(request.max_depth, 2)) return;
    const int32_t first = std::max(oracle_(tokens), 0);
    DraftDistribution q;
    for (int32_t i = 0; i < 4; ++i) q.ids.push_back((first + i) % vocab_size_);
    q.probabilities = {0.4f, 0.3f, 0.2f, 0.1f};
    const int32_t distribution = tree.add_distribution(q);
    for (uint32_t lane = 0; lane < 2; ++lane) {
      if (tree.size() >= request.max_nodes) return;
      float sum = 0.0f;
      for (const float p : q.probabilities) sum += p;
      // Numbers of this place of the tree: of its siblings' texts none depends on another's.
      const auto place = static_cast<uint32_t>(parent + 1) * 2 + lane;
      const double uniform = uniform_draw(request.context.sampling->seed, request.context.id.sample,
                                          request.context.tokens.size(), DrawPurpose::kDraft, place);
      size_t at = 0;
      for (float reached = q.probabilities[0]; reached <= static_cast<float>(uniform) * sum && at + 1 < q.ids.size();)
        reached += q.probabilities[++at];
      tokens.push_back(q.ids[at]);
      draw(request, tokens, tree.add(parent, q.ids[at], 0.5f, distribution), depth + 1, tree);
      tokens.pop_back();
      q.ids.erase(q.ids.begin() + static_cast<ptrdiff_t>(at));
      q.probabilities.erase(q.probabilities.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  void guess(const DraftRequest& request, DraftTree& tree) {
    const DraftContext& context = request.context;
    std::vector<int32_t> tokens(context.tokens.begin(), context.tokens.end());
    if (guessing_ == Guessing::kDrawnTree) return draw(request, tokens, -1, 1, tree);
    const auto vocab = static_cast<uint64_t>(vocab_size_);
    int32_t length = std::min({request.max_nodes, request.max_depth, 7});
    if (guessing_ == Guessing::kTooMuch) length = 40;
    int32_t parent = -1;
    double survival = 1.0;
    for (int32_t depth = 1; depth <= length; ++depth) {
      if (depth > 1 && !request.worth.pays(survival, depth)) return;
      const uint64_t dice = chance(context, depth, 0);
      const int32_t right = oracle_(tokens);
      const auto any = static_cast<int32_t>(dice % vocab);
      const int32_t wrong =
          right < 0 ? any : static_cast<int32_t>((static_cast<uint64_t>(right) + 1 + dice % (vocab - 1)) % vocab);
      int32_t token = right < 0 ? any : right;
      float claimed = 0.9f;
      int32_t distribution = -1;
      switch (guessing_) {
        case Guessing::kRight: break;
        case Guessing::kPartly: token = dice % 3 == 0 ? wrong : token; break;
        case Guessing::kWrong: token = wrong; break;
        case Guessing::kRandom: token = any; break;
        case Guessing::kTooMuch:
          if (dice % 5 == 0) token = dice % 2 == 0 ? -1 : vocab_size_;
          claimed = dice % 7 == 0 ? 1e30f : -1.0f;
          break;
        case Guessing::kTree: {
          if (tree.size() + 3 > request.max_nodes) return;
          tree.add(parent, wrong, 0.3f);
          tree.add(parent, any == token ? wrong : any, dice % 3 == 0 ? 0.95f : 0.2f);
          break;
        }
        case Guessing::kDrawn: {
          DraftDistribution q;
          for (int32_t i = 0; i < 4; ++i) q.ids.push_back((token + i) % vocab_size_);
          q.probabilities.assign(4, 0.25f);
          const double uniform =
              uniform_draw(context.sampling->seed, context.id.sample, tokens.size(), DrawPurpose::kDraft);
          token = q.ids[static_cast<size_t>(uniform * 4.0)];
          distribution = tree.add_distribution(std::move(q));
          break;
        }
        case Guessing::kFailing:
        case Guessing::kDrawnTree: return;
      }
      parent = tree.add(parent, token, claimed, distribution);
      survival *= request.worth.confidence(claimed, depth);
      tokens.push_back(token >= 0 && token < vocab_size_ ? token : any);
    }
  }

  const std::string name_;
  const Guessing guessing_;
  const int32_t vocab_size_;
  const Oracle oracle_;
  std::map<SequenceId, int64_t> seen_;
};

// One of each, in the order of kAllGuessing: "g0" to "g8".
inline std::vector<std::shared_ptr<GuessingDrafter>> guessing_drafters(int32_t vocab_size,
                                                                       const GuessingDrafter::Oracle& oracle) {
  std::vector<std::shared_ptr<GuessingDrafter>> out;
  for (const Guessing guessing : kAllGuessing) {
    out.push_back(std::make_shared<GuessingDrafter>("g" + std::to_string(out.size()), guessing, vocab_size, oracle));
  }
  return out;
}

}  // namespace headrace::speculation
