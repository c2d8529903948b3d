// From one row of logits to one token: the chain of penalties, filters and the draw, a function of the row,
// the request's parameters and (seed, sample index, position) alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/op_params.h"

namespace headrace {

inline constexpr int32_t kMaxLogprobs = 128;

// Names and meanings as in vLLM's SamplingParams and the OpenAI API. Defaults leave the distribution
// untouched. They act in this order: logit bias, repetition, frequency and presence penalty, banned tokens
// (vLLM: vllm/v1/sample/ sampler.py); then temperature, top-k, typical, top-p, min-p, each over the
// probabilities that those before it left, renormalized (transformers: generation/utils.py,
// _get_logits_processor, has typical last and the rest so). Everywhere "most likely first" means ties by the
// lower id, so that each filter keeps one exact set: top_k = 1 is greedy, and of equal tokens at the edge of
// top-k or top-p the lower ids stay. (vLLM and transformers keep all ties at the edge of top-k, and cut those
// of top-p as their sort happens to leave them.)
struct SamplingParams {
  float temperature = 1.0f;         // >= 0; 0 is greedy (highest logit, ties to the lower id)
  int32_t top_k = 0;                // keep the k most likely; 0: all
  float top_p = 1.0f;               // in (0, 1]: smallest set of most likely tokens whose mass reaches p
  float min_p = 0.0f;               // in [0, 1]: drop tokens less likely than min_p times the most likely
  float typical_p = 1.0f;           // in (0, 1]: locally typical sampling (Meister et al. 2022): smallest set whose
                                    // mass reaches p of tokens with -log probability nearest to the entropy
  float repetition_penalty = 1.0f;  // > 0: divides positive, multiplies negative logits of tokens in prompt or output
  float frequency_penalty = 0.0f;   // [-2, 2]: times the count in the output, subtracted
  float presence_penalty = 0.0f;    // [-2, 2]: subtracted once for a token in the output
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits; ids in [0, vocab_size)
  uint64_t seed = 0;
  int32_t num_logprobs = 0;  // 0: none but the sampled token's; at most kMaxLogprobs
  // Log probabilities are of what biases, penalties, bans and masks leave, at temperature 1, in place of the model's own.
  bool processed_logprobs = false;

  // kInvalidArgument naming the field (its place) for a value out of range or not finite.
  Status validate(int32_t vocab_size) const;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log, of the model's distribution before penalties and filters, or processed_logprobs
};

struct SampledToken {
  int32_t token_id = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;  // num_logprobs most likely, highest first, ties by id
};

// Tokens seen so far, kept by the request. Ids outside the vocabulary and counts below 1 are ignored.
struct TokenHistory {
  std::unordered_map<int32_t, int32_t> output_counts;
  std::unordered_map<int32_t, int32_t> prompt_counts;
};

// A distribution over the tokens that can come: ids ascending, weights in proportion to their probabilities.
struct TokenWeights {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

// Thread rule: const and stateless between calls.
class Sampler {
 public:
  // params as validate() accepts them.
  explicit Sampler(SamplingParams params);
  const SamplingParams& params() const { return params_; }

  // Words of the tokens that may come (token_mask.h), of the logits after biases, penalties and bans; none: all may.
  using Allow = std::function<std::span<const uint32_t>(std::span<const float> logits)>;

  // logits [vocab_size] are overwritten; -inf is a token that cannot come. `banned` ids (min_tokens: stop
  // tokens; may be empty) get probability zero, and so do all that `allow` does not. sample_index tells the n samples of one
  // request apart, position counts generated tokens: both feed the counter-based generator (philox.h), so a draw does not
  // depend on what shares the batch. The draw inverts the cumulative distribution in the order of ids; equal
  // logits give the equal token on every machine. kInvalidArgument for NaN or +inf logits, and when no token
  // has finite probability.
  // stats: of the logits as they come; log probabilities are rounded as it is.
  Result<SampledToken> sample(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                              std::span<const int32_t> banned, uint32_t sample_index, uint64_t position,
                              const Allow& allow = {}) const;
  // The same where `draw` chooses the token, from what the filters leave (greedy: of the one token).
  using Draw = std::function<int32_t(const TokenWeights&)>;
  Result<SampledToken> sample_by(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                                 std::span<const int32_t> banned, const Allow& allow, const Draw& draw) const;

 private:
  struct Row;
  Result<Row> prepare(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                      std::span<const int32_t> banned, const Allow& allow) const;
  // Whether filters leave tokens out.
  bool filters(size_t vocab_size) const;

  SamplingParams params_;
};

// log softmax(logits)[token_id] and the num_logprobs most likely; for prompt logprobs. logits are left alone.
// kInvalidArgument for an id outside the vocabulary, NaN or +inf logits, or none that is finite.
Result<SampledToken> score_token(std::span<const float> logits, const LogitStats& stats, int32_t token_id,
                                 int32_t num_logprobs);

}  // namespace headrace
