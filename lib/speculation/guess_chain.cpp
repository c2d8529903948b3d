#include "speculation/guess_chain.h"

#include <algorithm>
#include <cmath>

namespace headrace::speculation {
namespace {

SamplingParams sampling_of(const DraftRequest& request) {
  SamplingParams params;
  params.temperature = 0.0f;
  if (request.context.sampling != nullptr) params = *request.context.sampling;
  params.num_logprobs = 0;
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
  const int64_t output = static_cast<int64_t>(context.tokens.size()) + tree_.size() - context.prompt_size;
  const auto drawn = sampler_.sample(logits, stats, history_, {}, context.id.sample, static_cast<uint64_t>(output));
  if (!drawn.ok() || drawn->token_id >= vocab_size_) return std::nullopt;  // numbers that say nothing are no failure
  const float confidence = std::clamp(std::exp(drawn->logprob), 0.0f, 1.0f);
  survival_ *= request_.worth.confidence(confidence, tree_.size() + 1);
  if (!tree_.empty() && survival_ < static_cast<double>(least_survival_)) return std::nullopt;
  tree_.add(tree_.size() - 1, drawn->token_id, confidence);
  ++history_.output_counts[drawn->token_id];
  return drawn->token_id;
}

bool GuessChain::has_room() const {
  return tree_.size() < std::min(request_.max_depth, request_.max_nodes) &&
         survival_ >= static_cast<double>(least_survival_);
}

bool GuessChain::goes_on() const { return has_room() && request_.worth.pays(survival_, tree_.size() + 1); }

}  // namespace headrace::speculation
