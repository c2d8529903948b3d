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

std::optional<int32_t> GuessChain::guess(std::span<float> logits, const LogitStats& stats) {
  const DraftContext& context = request_.context;
  const int64_t output = static_cast<int64_t>(context.tokens.size()) + length_ - context.prompt_size;
  const auto drawn = sampler_.sample(logits, stats, history_, {}, context.id.sample, static_cast<uint64_t>(output));
  if (!drawn.ok() || drawn->token_id >= vocab_size_) return std::nullopt;  // numbers that say nothing are no failure
  const float confidence = std::clamp(std::exp(drawn->logprob), 0.0f, 1.0f);
  survival_ *= request_.worth.confidence(confidence, length_ + 1);
  if (length_ > 0 && survival_ < static_cast<double>(least_survival_)) return std::nullopt;
  const int32_t parent = std::exchange(last_, tree_.add(last_, drawn->token_id, confidence));
  add_beside(parent, *drawn, request_.max_nodes);
  ++length_;
  ++history_.output_counts[drawn->token_id];
  return drawn->token_id;
}

// What else may come in place of the token, where there is room.
void GuessChain::add_beside(int32_t parent, const SampledToken& drawn, int32_t max_nodes) {
  constexpr float kLeast = 0.02f;
  for (const TokenLogprob& other : drawn.top_logprobs) {
    const float claimed = std::exp(other.logprob);
    if (other.token_id == drawn.token_id || other.token_id >= vocab_size_ || !(claimed >= kLeast)) continue;
    if (tree_.size() >= max_nodes) return;
    tree_.add(parent, other.token_id, claimed);
  }
}

std::optional<int32_t> GuessChain::branch(int32_t node, std::span<float> logits, const LogitStats& stats) {
  const DraftContext& context = request_.context;
  TokenHistory history = history_;
  int64_t output = static_cast<int64_t>(context.tokens.size()) - context.prompt_size;
  for (int32_t at = node; at >= 0; at = tree_.nodes()[static_cast<size_t>(at)].parent) {
    ++history.output_counts[tree_.nodes()[static_cast<size_t>(at)].token];
    ++output;
  }
  const auto drawn = sampler_.sample(logits, stats, history, {}, context.id.sample, static_cast<uint64_t>(output));
  if (!drawn.ok() || drawn->token_id >= vocab_size_) return std::nullopt;
  const int32_t first = tree_.add(node, drawn->token_id, std::clamp(std::exp(drawn->logprob), 0.0f, 1.0f));
  add_beside(node, *drawn, std::numeric_limits<int32_t>::max());
  return first;
}

double GuessChain::survival(int32_t node) const {
  double product = 1.0;
  while (node >= 0) {
    const DraftNode& at = tree_.nodes()[static_cast<size_t>(node)];
    product *= request_.worth.confidence(at.claimed, at.depth);
    node = at.parent;
  }
  return product;
}

bool GuessChain::goes_on_behind(int32_t node) const {
  const int32_t depth = tree_.nodes()[static_cast<size_t>(node)].depth;
  const double reached = survival(node);
  return depth < request_.max_depth && reached >= static_cast<double>(least_survival_) &&
         request_.worth.pays(reached, depth + 1);
}

void GuessChain::rerank() {
  if (tree_.size() <= request_.max_nodes) return;
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t node = 0; node < tree_.size(); ++node) order.emplace_back(-survival(node), node);
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
