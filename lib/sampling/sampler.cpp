#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sampling/philox.h"
#include "sampling/portable_exp.h"
#include "sampling/selection.h"
#include "sampling/token_mask.h"
#include "sampling/weighted_draw.h"

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

// Calls visit(first id, weights) with e^((logit - max) / temperature) of all tokens, in pieces that stay in
// the nearest cache: their exponentials are computed side by side, and only additions have to wait for each
// other.
constexpr size_t kPiece = 256;
template <class Visit>
void visit_weights(std::span<const float> logits, double max, double temperature, const Visit& visit) {
  std::array<double, kPiece> piece;
  for (size_t start = 0; start < logits.size(); start += kPiece) {
    const size_t size = std::min(kPiece, logits.size() - start);
    if (temperature == 1.0) {
      for (size_t i = 0; i < size; ++i) piece[i] = portable_exp(static_cast<double>(logits[start + i]) - max);
    } else {
      for (size_t i = 0; i < size; ++i) {
        piece[i] = portable_exp((static_cast<double>(logits[start + i]) - max) / temperature);
      }
    }
    visit(start, std::span<const double>(piece.data(), size));
  }
}

double sum_of(std::span<const double> weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return sum;
}

Result<Distribution> distribution_of(std::span<const float> logits, const LogitStats& stats) {
  if (std::isnan(stats.log_sum)) {
    HEADRACE_RETURN_IF_ERROR(highest(logits).status());
    return invalid_argument("logits", "their sum is not a number");
  }
  return Distribution{stats.max, stats.log_sum};
}

// Of logits that were changed, `max` the highest of them.
Distribution distribution_of(std::span<const float> logits, float max) {
  double sum = 0;
  visit_weights(logits, max, 1.0, [&](size_t, std::span<const double> weights) { sum += sum_of(weights); });
  return {max, std::log(sum)};
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

  void keep_only(std::span<const uint32_t> allowed) {
    masked_ = true;
    for (size_t id = 0; id < logits_.size(); ++id) {
      if (!mask_allows(allowed, static_cast<int32_t>(id))) logits_[id] = -kInfinity;
    }
  }

  bool changed() const { return masked_ || !changed_.empty(); }

  float adjusted(int32_t id) const { return logits_[static_cast<size_t>(id)]; }

  // Of a token that the mask left.
  float original(int32_t id) const {
    for (const auto& [changed, logit] : changed_) {
      if (changed == id) return logit;  // the first change saw the model's own
    }
    return logits_[static_cast<size_t>(id)];
  }

 private:
  std::span<float> logits_;
  std::vector<std::pair<int32_t, float>> changed_;
  bool masked_ = false;
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

// A draw when no filter is set: the cumulative weights at every piece, then inside one.
int32_t draw_from_all(std::span<const float> logits, double max, double temperature, double uniform) {
  std::vector<double> sums;
  sums.reserve(logits.size() / kPiece + 1);
  visit_weights(logits, max, temperature,
                [&](size_t, std::span<const double> weights) { sums.push_back(sum_of(weights)); });
  const double target = uniform * sum_of(sums);
  double before = 0;
  size_t chosen = 0;  // the last piece with weight, for a target that rounding put at the sum itself
  for (size_t piece = 0; piece < sums.size(); ++piece) {
    if (sums[piece] == 0.0) continue;
    before += chosen < piece ? sums[chosen] : 0.0;
    chosen = piece;
    if (before + sums[piece] > target) break;
  }
  const size_t start = chosen * kPiece;
  size_t last = 0;
  visit_weights(logits.subspan(start, std::min(kPiece, logits.size() - start)), max, temperature,
                [&](size_t, std::span<const double> weights) {
                  double sum = before;
                  for (size_t i = 0; i < weights.size(); ++i) {
                    if (weights[i] == 0.0) continue;
                    sum += weights[i];
                    last = i;
                    if (sum > target) break;
                  }
                });
  return static_cast<int32_t>(start + last);
}

// The tokens that can still come, ascending by id.
class Candidates {
 public:
  // The top_k highest logits (0: all that a later filter can keep), with weights e^((logit - max) /
  // temperature).
  Candidates(std::span<const float> logits, float max, const SamplingParams& params) {
    const double temperature = params.temperature;
    const auto top_k = static_cast<size_t>(std::max(params.top_k, 0));
    if (top_k > 0 && top_k < logits.size()) {
      const auto key = [&](size_t id) { return order_key(logits[id]); };
      Cut cut = cut_at_count(logits.size(), key, top_k);
      for (size_t id = 0; id < logits.size(); ++id) {
        if (logits[id] == -kInfinity || !cut.keeps(key(id))) continue;
        add(id, logits[id], portable_exp((static_cast<double>(logits[id]) - static_cast<double>(max)) / temperature));
      }
      sum_ = sum_of(weights_);
      return;
    }
    visit_weights(logits, max, temperature, [&](size_t, std::span<const double> weights) { sum_ += sum_of(weights); });
    // The entropy needs every token. Else those that min-p will drop are left out here, and those so light
    // that all of them together weigh less than half of what top-p leaves over. The greatest weight is 1.
    double least = 0;
    if (params.typical_p >= 1.0f) {
      const double spare = (1.0 - static_cast<double>(params.top_p)) * sum_;
      least = std::max<double>(params.min_p, spare / (2.0 * static_cast<double>(logits.size())));
    }
    visit_weights(logits, max, temperature, [&](size_t start, std::span<const double> weights) {
      for (size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] > 0 && weights[i] >= least) add(start + i, logits[start + i], weights[i]);
      }
    });
  }

  void keep_typical(double p, double max, double temperature) {
    // With x = (logit - max) / temperature and Z the sum of weights, -log(probability) - entropy is
    // sum(probability x) - x: log Z cancels.
    const auto exponent = [&](size_t i) { return (static_cast<double>(logits_[i]) - max) / temperature; };
    double weighted = 0;
    for (size_t i = 0; i < ids_.size(); ++i) weighted += weights_[i] > 0 ? weights_[i] * exponent(i) : 0.0;
    const double mean = weighted / sum_;
    keep_mass(p, [&](size_t i) { return order_key(-static_cast<float>(std::abs(mean - exponent(i)))); });
  }

  void keep_top_p(double p) {
    keep_mass(p, [&](size_t i) { return order_key(logits_[i]); });
  }

  void keep_min_p(double p) {
    const double least = p * *std::ranges::max_element(weights_);
    compact([&](size_t i) { return weights_[i] >= least; });
  }

  void filter(const SamplingParams& params, float max) {
    if (params.typical_p < 1.0f) keep_typical(params.typical_p, max, params.temperature);
    if (params.top_p < 1.0f) keep_top_p(params.top_p);
    if (params.min_p > 0.0f) keep_min_p(params.min_p);
  }

  TokenWeights take() { return {std::move(ids_), std::move(weights_)}; }

  int32_t draw(double uniform) const { return draw_by_weight(ids_, weights_, uniform); }

 private:
  void add(size_t id, float logit, double weight) {
    ids_.push_back(static_cast<int32_t>(id));
    logits_.push_back(logit);
    weights_.push_back(weight);
  }

  template <class Key>
  void keep_mass(double p, const Key& key) {
    Cut cut = cut_at_mass<double>(
        ids_.size(), key, [&](size_t i) { return weights_[i]; }, p * sum_);
    compact([&](size_t i) { return cut.keeps(key(i)); });
    sum_ = sum_of(weights_);
  }

  template <class Keep>
  void compact(const Keep& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (!keep(i)) continue;
      ids_[kept] = ids_[i];
      logits_[kept] = logits_[i];
      weights_[kept] = weights_[i];
      ++kept;
    }
    ids_.resize(kept);
    logits_.resize(kept);
    weights_.resize(kept);
  }

  std::vector<int32_t> ids_;
  std::vector<float> logits_;
  std::vector<double> weights_;
  double sum_ = 0;  // of the weights, those left out here included
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
  HEADRACE_RETURN_IF_ERROR(
      check_range("repetition_penalty", repetition_penalty, repetition_penalty > 0, "a finite number above 0"));
  HEADRACE_RETURN_IF_ERROR(check_range("frequency_penalty", frequency_penalty,
                                       frequency_penalty >= -2 && frequency_penalty <= 2, "in [-2, 2]"));
  HEADRACE_RETURN_IF_ERROR(
      check_range("presence_penalty", presence_penalty, presence_penalty >= -2 && presence_penalty <= 2, "in [-2, 2]"));
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

// A row of logits on its way to a token.
struct Sampler::Row {
  SampledToken sampled;  // its alternatives
  Distribution distribution;
  Adjuster adjuster;
  float max = 0.0f;
  bool processed = false;  // the distribution is of the adjusted logits

  SampledToken finish(int32_t token_id) {
    sampled.token_id = token_id;
    sampled.logprob = distribution.logprob(processed ? adjuster.adjusted(token_id) : adjuster.original(token_id));
    return std::move(sampled);
  }
};

Result<Sampler::Row> Sampler::prepare(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                                      std::span<const int32_t> banned, const Allow& allow) const {
  HEADRACE_ASSIGN_OR_RETURN(const Distribution distribution, distribution_of(logits, stats));
  Row row{{}, distribution, Adjuster(logits), stats.max};
  row.sampled.top_logprobs = top_logprobs(logits, distribution, params_.num_logprobs);
  adjust(row.adjuster, params_, history, banned);
  if (allow) {
    const std::span<const uint32_t> allowed = allow(logits);
    if (!allowed.empty()) row.adjuster.keep_only(allowed);
  }
  if (row.adjuster.changed()) {
    HEADRACE_ASSIGN_OR_RETURN(row.max, highest(logits));
    if (params_.processed_logprobs) {
      row.processed = true;
      row.distribution = distribution_of(logits, row.max);
      row.sampled.top_logprobs = top_logprobs(logits, row.distribution, params_.num_logprobs);
    }
  }
  return row;
}

bool Sampler::filters(size_t vocab_size) const {
  const bool cuts = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < vocab_size;
  return cuts || params_.typical_p < 1.0f || params_.top_p < 1.0f || params_.min_p > 0.0f;
}

Result<SampledToken> Sampler::sample(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                                     std::span<const int32_t> banned, uint32_t sample_index, uint64_t position,
                                     const Allow& allow) const {
  HEADRACE_ASSIGN_OR_RETURN(Row row, prepare(logits, stats, history, banned, allow));
  if (params_.temperature == 0.0f) {
    if (!row.adjuster.changed()) return row.finish(stats.argmax);
    return row.finish(static_cast<int32_t>(std::ranges::find(logits, row.max) - logits.begin()));
  }
  const double uniform = uniform_draw(params_.seed, sample_index, position);
  if (!filters(logits.size())) return row.finish(draw_from_all(logits, row.max, params_.temperature, uniform));
  Candidates candidates(logits, row.max, params_);
  candidates.filter(params_, row.max);
  return row.finish(candidates.draw(uniform));
}

Result<SampledToken> Sampler::sample_by(std::span<float> logits, const LogitStats& stats, const TokenHistory& history,
                                        std::span<const int32_t> banned, const Allow& allow, const Draw& draw) const {
  HEADRACE_ASSIGN_OR_RETURN(Row row, prepare(logits, stats, history, banned, allow));
  if (params_.temperature == 0.0f) {
    const auto best = static_cast<int32_t>(std::ranges::find(logits, row.max) - logits.begin());
    return row.finish(draw({{best}, {1.0}}));
  }
  Candidates candidates(logits, row.max, params_);
  candidates.filter(params_, row.max);
  return row.finish(draw(candidates.take()));
}

Result<SampledToken> score_token(std::span<const float> logits, const LogitStats& stats, int32_t token_id,
                                 int32_t num_logprobs) {
  if (token_id < 0 || static_cast<size_t>(token_id) >= logits.size()) {
    return invalid_argument("token_id", "{} is not in [0, {})", token_id, logits.size());
  }
  HEADRACE_ASSIGN_OR_RETURN(const Distribution distribution, distribution_of(logits, stats));
  return SampledToken{token_id, distribution.logprob(logits[static_cast<size_t>(token_id)]),
                      top_logprobs(logits, distribution, num_logprobs)};
}

}  // namespace headrace
