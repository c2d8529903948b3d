#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sampling/philox.h"
#include "sampling/portable_exp.h"
#include "sampling/selection.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The highest logit. NaN and +inf have no place in a distribution, and -inf alone makes none.
Result<float> highest(std::span<const float> logits) {
  float max = -kInfinity;
  bool nan = false;
  for (const float logit : logits) {
    nan |= logit != logit;
    max = logit > max ? logit : max;
  }
  if (nan || max == kInfinity) {
    for (size_t id = 0; id < logits.size(); ++id) {
      if (!(logits[id] < kInfinity)) return invalid_argument("logits", "the logit of token {} is {}", id, logits[id]);
    }
  }
  if (max == -kInfinity) return invalid_argument("logits", "no token of {} has a finite logit", logits.size());
  return max;
}

// The model's distribution at temperature 1.
struct Distribution {
  double max = 0;
  double log_sum = 0;  // log of the sum of e^(logit - max)

  float logprob(float logit) const { return static_cast<float>(static_cast<double>(logit) - max - log_sum); }
};

Result<Distribution> distribution_of(std::span<const float> logits) {
  HEADRACE_ASSIGN_OR_RETURN(const float max, highest(logits));
  Distribution d{max, 0};
  // In pieces, so that the exponentials are computed side by side and only the additions one after the other.
  std::array<double, 256> piece;
  double sum = 0;
  for (size_t start = 0; start < logits.size(); start += piece.size()) {
    const size_t size = std::min(piece.size(), logits.size() - start);
    for (size_t i = 0; i < size; ++i) piece[i] = portable_exp(static_cast<double>(logits[start + i]) - d.max);
    for (size_t i = 0; i < size; ++i) sum += piece[i];
  }
  d.log_sum = std::log(sum);
  return d;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, const Distribution& d, int32_t count) {
  std::vector<TokenLogprob> top;
  const size_t wanted = std::min(static_cast<size_t>(std::clamp(count, 0, kMaxLogprobs)), logits.size());
  if (wanted == 0) return top;
  const auto key = [&](size_t id) { return order_key(logits[id]); };
  Cut cut = cut_at_count(logits.size(), key, wanted);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (cut.keeps(key(id))) top.push_back({static_cast<int32_t>(id), logits[id]});
  }
  std::ranges::stable_sort(top, std::greater(), &TokenLogprob::logprob);
  for (TokenLogprob& token : top) token.logprob = d.logprob(token.logprob);
  return top;
}

// Changes single logits and remembers what they were.
class Adjuster {
 public:
  explicit Adjuster(std::span<float> logits) : logits_(logits) {}

  template <class Change>
  void change(int32_t id, const Change& change) {
    if (id < 0 || static_cast<size_t>(id) >= logits_.size()) return;
    float& logit = logits_[static_cast<size_t>(id)];
    changed_.emplace_back(id, logit);
    logit = change(logit);
  }

  float original(int32_t id) const {
    for (const auto& [changed, logit] : changed_) {
      if (changed == id) return logit;  // the first change saw the model's own
    }
    return logits_[static_cast<size_t>(id)];
  }

 private:
  std::span<float> logits_;
  std::vector<std::pair<int32_t, float>> changed_;
};

void adjust(Adjuster& adjuster, const SamplingParams& params, const TokenHistory& history,
            std::span<const int32_t> banned) {
  for (const auto& [id, bias] : params.logit_bias) {
    const float added = bias;
    adjuster.change(id, [&](float logit) { return logit + added; });
  }
  const auto repeat = [&](float logit) {
    return logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  };
  if (params.repetition_penalty != 1.0f) {
    for (const auto& [id, count] : history.prompt_counts) {
      const auto output = history.output_counts.find(id);
      const bool again = output != history.output_counts.end() && output->second > 0;  // penalized below, once
      if (count > 0 && !again) adjuster.change(id, repeat);
    }
  }
  if (params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f) {
    for (const auto& [id, count] : history.output_counts) {
      if (count <= 0) continue;
      const float frequency = params.frequency_penalty * static_cast<float>(count);
      adjuster.change(id, [&](float logit) { return repeat(logit) - frequency - params.presence_penalty; });
    }
  }
  for (const int32_t id : banned) adjuster.change(id, [](float) { return -kInfinity; });
}

// The tokens that can still come, ascending by id.
class Candidates {
 public:
  // The top_k highest logits (0: all finite ones), with weights e^((logit - max) / temperature).
  Candidates(std::span<const float> logits, float max, const SamplingParams& params) {
    const auto key = [&](size_t id) { return order_key(logits[id]); };
    const auto top_k = static_cast<size_t>(std::max(params.top_k, 0));
    const bool cuts = top_k > 0 && top_k < logits.size();
    Cut cut = cuts ? cut_at_count(logits.size(), key, top_k) : Cut();
    const size_t room = cuts ? top_k : logits.size();
    ids_.reserve(room);
    logits_.reserve(room);
    exponents_.reserve(room);
    for (size_t id = 0; id < logits.size(); ++id) {
      if (logits[id] == -kInfinity || (cuts && !cut.keeps(key(id)))) continue;
      ids_.push_back(static_cast<int32_t>(id));
      logits_.push_back(logits[id]);
      exponents_.push_back(static_cast<double>(logits[id]) - static_cast<double>(max));
    }
    const double temperature = params.temperature;
    weights_.resize(ids_.size());
    for (size_t i = 0; i < ids_.size(); ++i) {
      exponents_[i] /= temperature;
      weights_[i] = portable_exp(exponents_[i]);
    }
  }

  void keep_typical(double p) {
    // With x the exponents and Z the sum of weights: -log(probability) - entropy = sum(probability x) - x, log Z cancels.
    double sum = 0;
    double weighted = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      sum += weights_[i];
      // An exponent may be -inf (tiny temperatures), its weight is then 0 and so is the product's limit.
      weighted += weights_[i] > 0 ? weights_[i] * exponents_[i] : 0.0;
    }
    const double mean = weighted / sum;
    keep_mass(p * sum, [&](size_t i) { return order_key(-static_cast<float>(std::abs(mean - exponents_[i]))); });
  }

  void keep_top_p(double p) {
    keep_mass(p * sum_weights(), [&](size_t i) { return order_key(logits_[i]); });
  }

  void keep_min_p(double p) {
    const double least = p * *std::ranges::max_element(weights_);
    compact([&](size_t i) { return weights_[i] >= least; });
  }

  // The first id whose cumulative weight exceeds uniform * sum.
  int32_t draw(double uniform) const {
    const double target = uniform * sum_weights();
    double sum = 0;
    int32_t last = ids_[0];  // for a target that rounding put at the sum itself
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (weights_[i] == 0.0) continue;
      sum += weights_[i];
      last = ids_[i];
      if (sum > target) break;
    }
    return last;
  }

 private:
  double sum_weights() const {
    double sum = 0;
    for (const double weight : weights_) sum += weight;
    return sum;
  }

  template <class Key>
  void keep_mass(double target, const Key& key) {
    Cut cut = cut_at_mass<double>(ids_.size(), key, [&](size_t i) { return weights_[i]; }, target);
    compact([&](size_t i) { return cut.keeps(key(i)); });
  }

  template <class Keep>
  void compact(const Keep& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (!keep(i)) continue;
      ids_[kept] = ids_[i];
      logits_[kept] = logits_[i];
      exponents_[kept] = exponents_[i];
      weights_[kept] = weights_[i];
      ++kept;
    }
    ids_.resize(kept);
    logits_.resize(kept);
    exponents_.resize(kept);
    weights_.resize(kept);
  }

  std::vector<int32_t> ids_;
  std::vector<float> logits_;
  std::vector<double> exponents_;  // log of the weights
  std::vector<double> weights_;
};

Status check_range(const char* field, float value, bool inside, const char* range) {
  if (inside && std::isfinite(value)) return Status();
  return invalid_argument(field, "{} is not {}", value, range);
}

}  // namespace

Status SamplingParams::validate(int32_t vocab_size) const {
  HEADRACE_RETURN_IF_ERROR(check_range("temperature", temperature, temperature >= 0, "a finite number of at least 0"));
  if (top_k < 0) return invalid_argument("top_k", "{} is negative", top_k);
  HEADRACE_RETURN_IF_ERROR(check_range("top_p", top_p, top_p > 0 && top_p <= 1, "in (0, 1]"));
  HEADRACE_RETURN_IF_ERROR(check_range("min_p", min_p, min_p >= 0 && min_p <= 1, "in [0, 1]"));
  HEADRACE_RETURN_IF_ERROR(check_range("typical_p", typical_p, typical_p > 0 && typical_p <= 1, "in (0, 1]"));
  HEADRACE_RETURN_IF_ERROR(check_range("repetition_penalty", repetition_penalty, repetition_penalty > 0,
                                       "a finite number above 0"));
  HEADRACE_RETURN_IF_ERROR(check_range("frequency_penalty", frequency_penalty,
                                       frequency_penalty >= -2 && frequency_penalty <= 2, "in [-2, 2]"));
  HEADRACE_RETURN_IF_ERROR(check_range("presence_penalty", presence_penalty,
                                       presence_penalty >= -2 && presence_penalty <= 2, "in [-2, 2]"));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size) return invalid_argument("logit_bias", "token {} is not in [0, {})", id, vocab_size);
    if (!std::isfinite(bias)) return invalid_argument("logit_bias", "the bias {} of token {} is not finite", bias, id);
  }
  if (num_logprobs < 0 || num_logprobs > kMaxLogprobs) {
    return invalid_argument("num_logprobs", "{} is not in [0, {}]", num_logprobs, kMaxLogprobs);
  }
  return Status();
}

Sampler::Sampler(SamplingParams params) : params_(std::move(params)) {}

Result<SampledToken> Sampler::sample(std::span<float> logits, const TokenHistory& history,
                                     std::span<const int32_t> banned, uint32_t sample_index, uint64_t position) const {
  HEADRACE_ASSIGN_OR_RETURN(const Distribution distribution, distribution_of(logits));
  SampledToken sampled;
  sampled.top_logprobs = top_logprobs(logits, distribution, params_.num_logprobs);

  Adjuster adjuster(logits);
  adjust(adjuster, params_, history, banned);
  HEADRACE_ASSIGN_OR_RETURN(const float max, highest(logits));
  if (params_.temperature == 0.0f) {
    sampled.token_id = static_cast<int32_t>(std::ranges::find(logits, max) - logits.begin());
  } else {
    Candidates candidates(logits, max, params_);
    if (params_.typical_p < 1.0f) candidates.keep_typical(params_.typical_p);
    if (params_.top_p < 1.0f) candidates.keep_top_p(params_.top_p);
    if (params_.min_p > 0.0f) candidates.keep_min_p(params_.min_p);
    sampled.token_id = candidates.draw(uniform_draw(params_.seed, sample_index, position));
  }
  sampled.logprob = distribution.logprob(adjuster.original(sampled.token_id));
  return sampled;
}

Result<SampledToken> score_token(std::span<const float> logits, int32_t token_id, int32_t num_logprobs) {
  if (token_id < 0 || static_cast<size_t>(token_id) >= logits.size()) {
    return invalid_argument("token_id", "{} is not in [0, {})", token_id, logits.size());
  }
  HEADRACE_ASSIGN_OR_RETURN(const Distribution distribution, distribution_of(logits));
  return SampledToken{token_id, distribution.logprob(logits[static_cast<size_t>(token_id)]),
                      top_logprobs(logits, distribution, num_logprobs)};
}

}  // namespace headrace
