#include "sampling/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "sampling/selection.h"
#include "unit/logit_stats.h"

namespace headrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(size_t size, uint32_t seed, float step) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(size);
  // In steps, so that there are ties.
  for (float& logit : logits) logit = std::round(normal(random) / step) * step;
  return logits;
}

SampledToken sample(const SamplingParams& params, std::vector<float> logits, uint32_t sample_index = 0,
                    uint64_t position = 0, const TokenHistory& history = {}, std::vector<int32_t> banned = {}) {
  const auto token = Sampler(params).sample(logits, test::logit_stats(logits), history, banned, sample_index, position);
  REQUIRE(token.ok());
  return *token;
}

// The filtered distribution, by sorting: the definition in sampler.h word for word.
std::vector<long double> filtered(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<long double> p(logits.size());
  const long double max = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - max) / params.temperature);
  const auto normalize = [&] {
    const long double sum = std::accumulate(p.begin(), p.end(), 0.0L);
    for (auto& x : p) x /= sum;
  };
  const auto order_by = [&](auto less) {
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), less);
    return order;
  };
  const auto keep_mass = [&](const std::vector<size_t>& order, long double mass) {
    long double sum = 0;
    for (const size_t i : order) {
      if (sum >= mass) {
        p[i] = 0;
      } else {
        sum += p[i];
      }
    }
    normalize();
  };
  const auto by_logit = [&](size_t a, size_t b) { return logits[a] > logits[b]; };
  normalize();
  if (params.top_k > 0) {
    const auto order = order_by(by_logit);
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0;
    normalize();
  }
  if (params.typical_p < 1) {
    long double entropy = 0;
    for (const auto x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    std::vector<float> distance(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      distance[i] = p[i] > 0 ? static_cast<float>(std::abs(-std::log(p[i]) - entropy)) : kInf;
    }
    keep_mass(order_by([&](size_t a, size_t b) { return distance[a] < distance[b]; }), params.typical_p);
  }
  if (params.top_p < 1) keep_mass(order_by(by_logit), params.top_p);
  const long double least = params.min_p * *std::max_element(p.begin(), p.end());
  for (auto& x : p) x = x < least ? 0 : x;
  normalize();
  return p;
}

TEST_CASE("Sampled tokens follow the filtered distribution") {
  const auto make = [](float temperature, int32_t top_k, float top_p, float min_p, float typical_p) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    params.typical_p = typical_p;
    params.seed = 20240117;
    return params;
  };
  const SamplingParams settings[] = {
      make(1.0f, 0, 1.0f, 0.0f, 1.0f),   make(0.7f, 0, 1.0f, 0.0f, 1.0f),   make(2.5f, 0, 1.0f, 0.0f, 1.0f),
      make(1.0f, 7, 1.0f, 0.0f, 1.0f),   make(1.0f, 0, 0.8f, 0.0f, 1.0f),   make(1.0f, 0, 1.0f, 0.05f, 1.0f),
      make(1.0f, 0, 1.0f, 0.0f, 0.6f),   make(0.8f, 20, 0.9f, 0.02f, 1.0f), make(1.3f, 30, 0.9f, 0.01f, 0.9f),
      make(1.0f, 400, 1.0f, 0.0f, 1.0f), make(1.0f, 1, 1.0f, 0.0f, 1.0f),
  };
  constexpr int kDraws = 20000;
  uint32_t logit_seed = 1;
  for (const SamplingParams& params : settings) {
    const auto logits = random_logits(60, logit_seed++, 0.25f);
    const auto p = filtered(logits, params);
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(sample(params, logits, 0, static_cast<uint64_t>(i)).token_id)];
    }
    // Cells with fewer than five expected draws are one cell together.
    double chi2 = 0;
    int cells = 0;
    double rest_expected = 0;
    double rest_count = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double expected = static_cast<double>(p[i]) * kDraws;
      INFO("setting " << logit_seed << " token " << i << " expected " << expected << " came " << counts[i]);
      if (p[i] == 0) CHECK(counts[i] == 0);
      if (expected < 5) {
        rest_expected += expected;
        rest_count += counts[i];
      } else {
        chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
        ++cells;
      }
    }
    if (rest_expected > 0) {
      chi2 += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
      ++cells;
    }
    // Wilson and Hilferty's quantile of chi-square at 4.75 standard deviations (one in a million).
    const double dof = std::max(1, cells - 1);
    const double bound = dof * std::pow(1 - 2 / (9 * dof) + 4.75 * std::sqrt(2 / (9 * dof)), 3);
    INFO("setting " << logit_seed << " cells " << cells << " chi-square " << chi2 << " bound " << bound);
    CHECK(chi2 < bound);
  }
}

TEST_CASE("The cut finds the same front as a sort") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const size_t size = 1 + random() % 3000;
    std::vector<float> values(size);
    std::vector<double> masses(size);
    for (size_t i = 0; i < size; ++i) {
      switch (random() % 4) {
        case 0: values[i] = static_cast<float>(random() % 20) - 10.0f; break;
        case 1: values[i] = std::bit_cast<float>(static_cast<uint32_t>(0x3f800000u + random() % 7)); break;
        case 2: values[i] = random() % 2 == 0 ? 0.0f : -0.0f; break;
        default:
          values[i] = std::ldexp(static_cast<float>(random() % 1000) - 500.0f, static_cast<int>(random() % 60) - 30);
      }
      masses[i] = static_cast<double>(random() % 1024) / 1024;  // sums are exact
    }
    std::vector<size_t> order(size);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
    const auto key = [&](size_t i) { return order_key(values[i]); };
    const auto kept = [&](Cut cut) {
      std::set<size_t> set;
      for (size_t i = 0; i < size; ++i) {
        if (cut.keeps(key(i))) set.insert(i);
      }
      return set;
    };
    const size_t count = 1 + random() % size;
    CHECK(kept(cut_at_count(size, key, count)) ==
          std::set<size_t>(order.begin(), order.begin() + static_cast<ptrdiff_t>(count)));

    const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
    const double target = total * static_cast<double>(1 + random() % 100) / 100;
    if (target <= 0) continue;
    double sum = 0;
    std::set<size_t> front;
    for (const size_t i : order) {
      if (sum >= target) break;
      sum += masses[i];
      front.insert(i);
    }
    CHECK(kept(cut_at_mass<double>(
              size, key, [&](size_t i) { return masses[i]; }, target)) == front);
  }
}

TEST_CASE("Samples of one request differ and are reproducible") {
  const auto logits = random_logits(1000, 9, 0.01f);
  SamplingParams params;
  params.seed = 7;
  const auto text = [&](uint32_t sample_index, uint64_t seed) {
    params.seed = seed;
    std::vector<int32_t> tokens;
    for (uint64_t position = 0; position < 20; ++position) {
      tokens.push_back(sample(params, logits, sample_index, position).token_id);
    }
    return tokens;
  };
  const auto first = text(0, 7);
  CHECK(first == text(0, 7));
  CHECK(first != text(1, 7));
  CHECK(text(1, 7) != text(2, 7));
  CHECK(first != text(0, 8));
}

// Worked out by a separate program in double precision: a change of the generator, the keys or the order must
// show.
TEST_CASE("Draws have the recorded tokens") {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 1000) / 125.0f;
  SamplingParams params;
  params.seed = 42;
  params.temperature = 0.8f;
  params.top_p = 0.95f;
  std::vector<int32_t> tokens;
  for (uint64_t position = 0; position < 8; ++position) tokens.push_back(sample(params, logits, 0, position).token_id);
  CHECK(tokens == std::vector<int32_t>{471, 322, 655, 667, 842, 297, 742, 409});
}

TEST_CASE("Greedy takes the highest logit, ties to the lower id") {
  SamplingParams params;
  params.temperature = 0.0f;
  CHECK(sample(params, {1.0f, 3.0f, -2.0f, 3.0f}).token_id == 1);
  CHECK(sample(params, {-0.0f, 0.0f}).token_id == 0);
  CHECK(sample(params, {-kInf, -5.0f}).token_id == 1);
  CHECK(sample(params, {1.0f, 3.0f, 2.0f}, 0, 0, {}, {1}).token_id == 2);
  params.temperature = 1.0f;
  params.top_k = 1;  // the same by another way
  for (uint64_t position = 0; position < 50; ++position) {
    CHECK(sample(params, {1.0f, 3.0f, -2.0f, 3.0f}, 0, position).token_id == 1);
  }
  params.top_k = 0;
  for (const float temperature : {1e-3f, 1e-30f, 1e-45f}) {
    params.temperature = temperature;
    CHECK(sample(params, {1.0f, 3.0f, -2.0f}).token_id == 1);
  }
}

TEST_CASE("Ties at the edge keep the lower ids") {
  SamplingParams params;
  params.top_k = 2;
  std::set<int32_t> seen;
  for (uint64_t position = 0; position < 200; ++position) {
    seen.insert(sample(params, {0.0f, 5.0f, 4.0f, 4.0f, 4.0f}, 0, position).token_id);
  }
  CHECK(seen == std::set<int32_t>{1, 2});
  params.top_k = 0;
  params.top_p = 0.5f;
  seen.clear();
  for (uint64_t position = 0; position < 200; ++position) {
    seen.insert(sample(params, {1.0f, 1.0f, 1.0f, 1.0f}, 0, position).token_id);
  }
  CHECK(seen == std::set<int32_t>{0, 1});
}

// Greedy shows the order of the adjusted logits; each case puts a rival next to the value worked out by hand.
TEST_CASE("Penalties have the values worked out by hand") {
  TokenHistory history;
  history.prompt_counts = {{0, 3}, {3, 1}};
  history.output_counts = {{1, 2}, {3, 1}, {4, 0}};
  const auto value_of = [&](SamplingParams params, std::vector<float> logits, int32_t token) {
    // Narrows the adjusted logit of `token` down between rivals.
    params.temperature = 0.0f;
    logits.push_back(0.0f);
    float low = -100.0f;
    float high = 100.0f;
    for (int i = 0; i < 60; ++i) {
      const float middle = low + (high - low) / 2;
      auto trial = logits;
      for (size_t id = 0; id < trial.size(); ++id) {
        if (static_cast<int32_t>(id) != token) trial[id] = -kInf;
      }
      trial.back() = middle;
      const auto chosen = sample(params, trial, 0, 0, history);
      (chosen.token_id == token ? low : high) = middle;
    }
    return low;
  };
  const std::vector<float> logits = {2.0f, 3.0f, -1.0f, -4.0f, 1.0f};
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  CHECK(value_of(params, logits, 0) == 1.0f);   // in the prompt: 2 / 2
  CHECK(value_of(params, logits, 1) == 1.5f);   // in the output: 3 / 2
  CHECK(value_of(params, logits, 2) == -1.0f);  // not seen
  CHECK(value_of(params, logits, 3) == -8.0f);  // in both, once: -4 * 2
  CHECK(value_of(params, logits, 4) == 1.0f);   // a count of 0 is not seen
  params = SamplingParams();
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  CHECK(value_of(params, logits, 0) == 2.0f);    // the prompt does not count
  CHECK(value_of(params, logits, 1) == 1.75f);   // 3 - 2 * 0.5 - 0.25
  CHECK(value_of(params, logits, 3) == -4.75f);  // -4 - 0.5 - 0.25
  params.repetition_penalty = 2.0f;
  CHECK(value_of(params, logits, 1) == 0.25f);  // 3 / 2 - 1 - 0.25: repetition comes first
  params.logit_bias = {{1, -4.0f}, {1, -1.0f}};
  CHECK(value_of(params, logits, 1) == -5.25f);  // (3 - 5) * 2 - 1 - 0.25: biases come before, and add up
  params.frequency_penalty = -2.0f;
  params.presence_penalty = -2.0f;
  CHECK(value_of(params, logits, 1) == 2.0f);  // -4 + 4 + 2
}

TEST_CASE("Ids outside the vocabulary change nothing") {
  TokenHistory history;
  history.output_counts = {{-1, 1}, {7, 1}};
  history.prompt_counts = {{1 << 30, 1}};
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 3.0f;
  params.logit_bias = {{9, 5.0f}};
  CHECK(sample(params, {1.0f, 2.0f}, 0, 0, history, {-5, 2}).token_id == 1);
}

TEST_CASE("Log probabilities are the model's own") {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -kInf};
  const double lse = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  SamplingParams params;
  params.temperature = 0;
  params.num_logprobs = 4;
  params.logit_bias = {{0, 50.0f}, {2, 10.0f}};
  params.repetition_penalty = 1.5f;
  TokenHistory history;
  history.prompt_counts = {{0, 1}};
  const auto token = sample(params, logits, 0, 0, history);
  CHECK(token.token_id == 0);
  // One rounding to float of a value below 8.
  CHECK(token.logprob == Approx(1.0 - lse).margin(5e-7));
  REQUIRE(token.top_logprobs.size() == 4);
  const std::vector<int32_t> order = {1, 3, 2, 0};
  for (size_t i = 0; i < order.size(); ++i) {
    CHECK(token.top_logprobs[i].token_id == order[i]);
    CHECK(token.top_logprobs[i].logprob == Approx(logits[static_cast<size_t>(order[i])] - lse).margin(5e-7));
  }
  const auto score = score_token(logits, test::logit_stats(logits), 2, 128);
  REQUIRE(score.ok());
  CHECK(score->logprob == Approx(2.0 - lse).margin(5e-7));
  REQUIRE(score->top_logprobs.size() == 5);
  CHECK(score->top_logprobs[4].token_id == 4);
  CHECK(score->top_logprobs[4].logprob == -kInf);
  CHECK(score_token(logits, test::logit_stats(logits), 2, 0)->top_logprobs.empty());
}

TEST_CASE("Processed log probabilities are of what can come, before temperature and filters") {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f, 4.0f};
  SamplingParams params;
  params.temperature = 0.0f;
  params.num_logprobs = 2;
  params.processed_logprobs = true;
  params.logit_bias = {{0, 0.5f}};
  const double sum = std::log(std::exp(1.5) + std::exp(2.0) + std::exp(3.0));
  const SampledToken greedy = sample(params, logits, 0, 0, {}, {3});
  CHECK(greedy.token_id == 2);
  CHECK(greedy.logprob == Approx(3.0 - sum));
  REQUIRE(greedy.top_logprobs.size() == 2);
  CHECK(greedy.top_logprobs[1].token_id == 1);
  CHECK(greedy.top_logprobs[1].logprob == Approx(2.0 - sum));
  params.temperature = 7.0f;
  params.top_k = 1;
  CHECK(sample(params, logits, 0, 0, {}, {3}).logprob == Approx(3.0 - sum));
  // By a mask likewise, and where nothing is changed they are the model's.
  const std::vector<uint32_t> words = {0b0111};
  params.logit_bias.clear();
  std::vector<float> masked = logits;
  const auto allow = [&](std::span<const float>) { return std::span<const uint32_t>(words); };
  const auto token = Sampler(params).sample(masked, test::logit_stats(logits), {}, {}, 0, 0, allow);
  REQUIRE(token.ok());
  CHECK(token->logprob == Approx(3.0 - std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0))));
  CHECK(sample(params, logits).logprob == Approx(-std::log(1 + std::exp(-1.0) + std::exp(-2.0) + std::exp(-3.0))));
}

TEST_CASE("Logits without a distribution are errors") {
  SamplingParams params;
  const auto fails = [&](std::vector<float> logits, std::vector<int32_t> banned = {}) {
    const auto token = Sampler(params).sample(logits, test::logit_stats(logits), {}, banned, 0, 0);
    return !token.ok() && token.status().code() == StatusCode::kInvalidArgument && token.status().place() == "logits";
  };
  for (const float temperature : {0.0f, 1.0f}) {
    params.temperature = temperature;
    CHECK(fails({1.0f, kNaN, 2.0f}));
    CHECK(fails({kNaN}));
    CHECK(fails({1.0f, kInf}));
    CHECK(fails({-kInf, -kInf}));
    CHECK(fails({}));
    CHECK(fails({1.0f, -kInf}, {0}));
    CHECK_FALSE(fails({1.0f, -kInf}, {1}));
  }
  CHECK_FALSE(
      score_token(std::vector<float>{1.0f, kNaN}, test::logit_stats(std::vector<float>{1.0f, kNaN}), 0, 0).ok());
  CHECK_FALSE(score_token(std::vector<float>{1.0f}, test::logit_stats(std::vector<float>{1.0f}), 1, 0).ok());
  CHECK_FALSE(score_token(std::vector<float>{1.0f}, test::logit_stats(std::vector<float>{1.0f}), -1, 0).ok());
}

TEST_CASE("Every field is validated and named") {
  CHECK(SamplingParams().validate(10).ok());
  const auto place = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = params.validate(10);
    if (status.ok()) return std::string("ok");
    CHECK(status.code() == StatusCode::kInvalidArgument);
    return status.place();
  };
  const auto field = [&](float SamplingParams::*member, const char* name, std::vector<float> good,
                         std::vector<float> bad) {
    bad.insert(bad.end(), {kNaN, kInf, -kInf});
    for (const float value : good) CHECK(place([&](SamplingParams& p) { p.*member = value; }) == "ok");
    for (const float value : bad) CHECK(place([&](SamplingParams& p) { p.*member = value; }) == name);
  };
  field(&SamplingParams::temperature, "temperature", {0.0f, 2.0f, 1e10f}, {-0.1f});
  field(&SamplingParams::top_p, "top_p", {1e-6f, 1.0f}, {0.0f, 1.01f, -1.0f});
  field(&SamplingParams::min_p, "min_p", {0.0f, 1.0f}, {-0.01f, 1.01f});
  field(&SamplingParams::typical_p, "typical_p", {0.1f, 1.0f}, {0.0f, 1.5f});
  field(&SamplingParams::repetition_penalty, "repetition_penalty", {0.1f, 2.0f}, {0.0f, -1.0f});
  field(&SamplingParams::frequency_penalty, "frequency_penalty", {-2.0f, 2.0f}, {-2.1f, 2.1f});
  field(&SamplingParams::presence_penalty, "presence_penalty", {-2.0f, 2.0f}, {-2.1f, 2.1f});
  CHECK(place([](SamplingParams& p) { p.top_k = -1; }) == "top_k");
  CHECK(place([](SamplingParams& p) { p.num_logprobs = -1; }) == "num_logprobs");
  CHECK(place([](SamplingParams& p) { p.num_logprobs = 129; }) == "num_logprobs");
  CHECK(place([](SamplingParams& p) { p.num_logprobs = 128; }) == "ok");
  CHECK(place([](SamplingParams& p) { p.logit_bias = {{10, 1.0f}}; }) == "logit_bias");
  CHECK(place([](SamplingParams& p) { p.logit_bias = {{-1, 1.0f}}; }) == "logit_bias");
  CHECK(place([](SamplingParams& p) { p.logit_bias = {{9, kInf}}; }) == "logit_bias");
  CHECK(place([](SamplingParams& p) { p.logit_bias = {{9, -100.0f}}; }) == "ok");
}

}  // namespace
}  // namespace headrace
