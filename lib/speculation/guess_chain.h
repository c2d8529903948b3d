// A request's guesses one after the other, each drawn from a drafter's distribution as the model will draw from its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sampling/sampler.h"
#include "speculation/draft_tree.h"
#include "speculation/drafter.h"

namespace headrace::speculation {

// The request's own sampling, penalties and all, with the numbers that the model will draw with at those positions: where both
// distributions agree the token is the same. Guesses are chosen tokens, and a seed's text is that of plain decoding. Where a
// greedy request wants branches, the next likeliest tokens stand beside each guess.
class GuessChain {
 public:
  // vocab_size: of the model; guesses are below it. They end where all so far come with less than least_survival, or where the
  // next is not worth its time. The request and the tree outlive the chain.
  GuessChain(const DraftRequest& request, DraftTree& tree, int32_t vocab_size, float least_survival);

  const DraftRequest& request() const { return request_; }
  // Whether other tokens stand beside its guesses.
  bool branches() const { return sampler_.params().num_logprobs > 0; }
  // The next guess, of the drafter's logits, which are overwritten. Nothing where the chain ends here.
  std::optional<int32_t> guess(std::span<float> logits, const LogitStats& stats);
  // For trees, in place of guess(): guesses at the token behind a node (-1: behind the sequence), the request's own first, however many
  // nodes there are. Gives the first one's index; nothing where the numbers say nothing.
  std::optional<int32_t> branch(int32_t node, std::span<float> logits, const LogitStats& stats);
  // Whether a pass for what follows the node is worth its time.
  bool goes_on_behind(int32_t node) const;
  // Leaves the likeliest nodes, no more than the request has room for.
  void rerank();
  // Whether another one may follow the last.
  bool has_room() const;
  // Whether it may, and its pass is worth the time.
  bool goes_on() const;

 private:
  std::optional<SampledToken> draw(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                                   int32_t length) const;
  int32_t add(int32_t parent, int32_t token, float claimed);
  void add_beside(int32_t parent, const SampledToken& drawn, int32_t max_nodes);

  const DraftRequest& request_;
  DraftTree& tree_;
  const int32_t vocab_size_;
  const float least_survival_;
  Sampler sampler_;
  TokenHistory history_;
  int32_t last_ = -1, length_ = 0;  // of the chain
  double survival_ = 1.0;
};

}  // namespace headrace::speculation
