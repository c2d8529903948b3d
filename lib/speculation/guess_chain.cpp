#include "speculation/guess_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace headrace::speculation {
namespace {

SamplingParams sampling_of(const DraftRequest& request) {
  SamplingParams params;
  params.temperature = 0.0f;
  if (request.context.sampling != nullptr) params = *request.context.sampling;
  // Beside a token that the model will draw with the same number, others come too rarely.
  params.num_logprobs = request.max_branches > 1 && params.temperature == 0.0f ? request.max_branches : 0;
  return params;
}

float claim_of(float logprob) { return std::clamp(std::exp(logprob), 0.0f, 1.0f); }

TokenHistory history_of(const DraftContext& context, const SamplingParams& params) {
  TokenHistory history;
  if (params.repetition_penalty == 1.0f && params.frequency_penalty == 0.0f && params.presence_penalty == 0.0f) {
    return history;
  }
  for (size_t i = 0; i < context.tokens.size(); ++i) {
    const bool of_prompt = static_cast<int64_t>(i) < context.prompt_size;
    ++(of_prompt ? history.prompt_counts : history.output_counts)[context.tokens[i]];
  }
  return history;
}

}  // namespace

GuessChain::GuessChain(const DraftRequest& request, DraftTree& tree, int32_t vocab_size, float least_survival)
    : request_(request),
      tree_(tree),
      vocab_size_(vocab_size),
      least_survival_(least_survival),
      sampler_(sampling_of(request)),
      history_(history_of(request.context, sampler_.params())) {}

// The request's own token behind `length` guesses. Numbers that say nothing are no failure.
std::optional<SampledToken> GuessChain::draw(std::span<float> logits, const LogitStats& stats,
                                             const TokenHistory& history, int32_t length) const {
  const DraftContext& context = request_.context;
  const int64_t output = static_cast<int64_t>(context.tokens.size()) + length - context.prompt_size;
  auto drawn = sampler_.sample(logits, stats, history, {}, context.id.sample, static_cast<uint64_t>(output));
  if (!drawn.ok() || drawn->token_id >= vocab_size_) return std::nullopt;
  return drawn.take();
}

int32_t GuessChain::add(int32_t parent, int32_t token, float claimed) {
  const int32_t node = tree_.add(parent, token, claimed);
  DraftNode& added = tree_.nodes()[static_cast<size_t>(node)];
  added.confidence = static_cast<float>(request_.worth.confidence(claimed, added.depth));
  return node;
}

std::optional<int32_t> GuessChain::guess(std::span<float> logits, const LogitStats& stats) {
  const auto drawn = draw(logits, stats, history_, length_);
  if (!drawn) return std::nullopt;
  const float claimed = claim_of(drawn->logprob);
  survival_ *= request_.worth.confidence(claimed, length_ + 1);
  if (length_ > 0 && survival_ < static_cast<double>(least_survival_)) return std::nullopt;
  const int32_t parent = std::exchange(last_, add(last_, drawn->token_id, claimed));
  add_beside(parent, *drawn, request_.max_nodes);
  ++length_;
  ++history_.output_counts[drawn->token_id];
  return drawn->token_id;
}

// What else may come in place of the token, where there is room.
void GuessChain::add_beside(int32_t parent, const SampledToken& drawn, int32_t max_nodes) {
  constexpr float kLeast = 0.02f;
  for (const TokenLogprob& other : drawn.top_logprobs) {
    const float claimed = claim_of(other.logprob);
    if (other.token_id == drawn.token_id || other.token_id >= vocab_size_ || !(claimed >= kLeast)) continue;
    if (tree_.size() >= max_nodes) return;
    add(parent, other.token_id, claimed);
  }
}

std::optional<int32_t> GuessChain::branch(int32_t node, std::span<float> logits, const LogitStats& stats) {
  TokenHistory history = history_;
  for (int32_t at = node; at >= 0; at = tree_.nodes()[static_cast<size_t>(at)].parent) {
    ++history.output_counts[tree_.nodes()[static_cast<size_t>(at)].token];
  }
  const auto drawn = draw(logits, stats, history, node < 0 ? 0 : tree_.nodes()[static_cast<size_t>(node)].depth);
  if (!drawn) return std::nullopt;
  const int32_t first = add(node, drawn->token_id, claim_of(drawn->logprob));
  add_beside(node, *drawn, std::numeric_limits<int32_t>::max());
  return first;
}

bool GuessChain::goes_on_behind(int32_t node) const {
  const int32_t depth = tree_.nodes()[static_cast<size_t>(node)].depth;
  const double reached = tree_.survival(node);
  return depth < request_.max_depth && reached >= static_cast<double>(least_survival_) &&
         request_.worth.pays(reached, depth + 1);
}

void GuessChain::rerank() {
  if (tree_.size() <= request_.max_nodes) return;
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t node = 0; node < tree_.size(); ++node) order.emplace_back(-tree_.survival(node), node);
  std::ranges::sort(order);
  std::vector<bool> keep(order.size(), false);
  for (int32_t i = 0; i < request_.max_nodes; ++i)
    keep[static_cast<size_t>(order[static_cast<size_t>(i)].second)] = true;
  tree_.prune(keep);
}

bool GuessChain::has_room() const {
  return length_ < request_.max_depth && tree_.size() < request_.max_nodes &&
         survival_ >= static_cast<double>(least_survival_);
}

bool GuessChain::goes_on() const { return has_room() && request_.worth.pays(survival_, length_ + 1); }

}  // namespace headrace::speculation
