// Rejection sampling keeps the target's distribution: chi-square over draws on small vocabularies.
#include "speculation/acceptance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace headrace::speculation {
namespace {

// Of the chi-square distribution: the probability of more than x, by Wilson and Hilferty's cube root.
double tail(double x, int degrees) {
  const double k = degrees, z = (std::cbrt(x / k) - (1.0 - 2.0 / (9.0 * k))) / std::sqrt(2.0 / (9.0 * k));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

TokenWeights weights(std::vector<double> values) {
  TokenWeights out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= 0.0) continue;
    out.ids.push_back(static_cast<int32_t>(i));
    out.weights.push_back(values[i]);
  }
  return out;
}

DraftDistribution distribution(std::vector<float> values) {
  DraftDistribution out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= 0.0f) continue;
    out.ids.push_back(static_cast<int32_t>(i));
    out.probabilities.push_back(values[i]);
  }
  return out;
}

int32_t draw_from(const DraftDistribution& q, std::span<const int32_t> without, double uniform) {
  double sum = 0.0, reached = 0.0;
  const auto gone = [&](int32_t id) { return std::find(without.begin(), without.end(), id) != without.end(); };
  for (size_t i = 0; i < q.ids.size(); ++i) sum += gone(q.ids[i]) ? 0.0 : static_cast<double>(q.probabilities[i]);
  int32_t last = -1;
  for (size_t i = 0; i < q.ids.size(); ++i) {
    if (gone(q.ids[i])) continue;
    last = q.ids[i];
    reached += static_cast<double>(q.probabilities[i]);
    if (reached > uniform * sum) break;
  }
  return last;
}

using Draw = std::function<int32_t(uint64_t seed, uint64_t position)>;

// How unlikely draws are to differ so much from the target, at the least over the seeds, which are 4.
double least_p_value(const TokenWeights& target, const Draw& draw, uint64_t num_draws) {
  const double sum = std::accumulate(target.weights.begin(), target.weights.end(), 0.0);
  double least = 1.0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<double> counts(64);
    for (uint64_t i = 0; i < num_draws; ++i) ++counts[static_cast<size_t>(draw(seed, i))];
    double chi = 0.0, inside = 0.0;
    for (size_t i = 0; i < target.ids.size(); ++i) {
      const double expected = static_cast<double>(num_draws) * target.weights[i] / sum;
      const double count = counts[static_cast<size_t>(target.ids[i])];
      inside += count;
      chi += (count - expected) * (count - expected) / expected;
    }
    REQUIRE(inside == static_cast<double>(num_draws));  // nothing that the target excludes
    least = std::min(least, tail(chi, static_cast<int>(target.ids.size()) - 1));
  }
  return least;
}

auto uniforms(uint64_t seed, uint64_t position) {
  return [=](DrawPurpose purpose, uint32_t lane) { return uniform_draw(seed, 0, position, purpose, lane); };
}

constexpr uint64_t kDraws = 1000000;
constexpr double kLeast = 1e-4;  // of 4 seeds and some twenty cases

const std::vector<std::vector<double>> kTargets = {
    {0.6, 0.25, 0.1, 0.05}, {1.0, 1.0, 1.0, 1.0}, {0.97, 0.01, 0.01, 0.01}, {5.0, 0.0, 3.0, 2.0}, {0.0, 0.2, 0.3, 0.5}};

}  // namespace

TEST_CASE("a drawn guess keeps the target's distribution") {
  const std::vector<DraftDistribution> drafts = {distribution({0.25f, 0.25f, 0.25f, 0.25f}),
                                                 distribution({0.05f, 0.05f, 0.1f, 0.8f}),
                                                 distribution({0.0f, 0.5f, 0.5f, 0.0f})};
  for (const auto& values : kTargets) {
    const TokenWeights target = weights(values);
    for (const DraftDistribution& q : drafts) {
      const double p = least_p_value(
          target,
          [&](uint64_t seed, uint64_t position) {
            const int32_t drawn = draw_from(q, {}, uniform_draw(seed, 0, position, DrawPurpose::kDraft));
            const Guess guess{drawn, &q};
            return accept(target, {&guess, 1}, uniforms(seed, position)).token;
          },
          kDraws / 4);
      INFO(p);
      CHECK(p > kLeast);
    }
  }
  // One case at full length.
  const TokenWeights target = weights(kTargets[0]);
  CHECK(least_p_value(
            target,
            [&](uint64_t seed, uint64_t position) {
              const int32_t drawn = draw_from(drafts[1], {}, uniform_draw(seed, 0, position, DrawPurpose::kDraft));
              const Guess guess{drawn, &drafts[1]};
              return accept(target, {&guess, 1}, uniforms(seed, position)).token;
            },
            kDraws) > kLeast);
}

TEST_CASE("siblings drawn without replacement, and chosen ones among them, keep it too") {
  const DraftDistribution q = distribution({0.1f, 0.2f, 0.3f, 0.4f}), other = distribution({0.7f, 0.1f, 0.1f, 0.1f});
  for (const auto& values : kTargets) {
    const TokenWeights target = weights(values);
    const double p = least_p_value(
        target,
        [&](uint64_t seed, uint64_t position) {
          std::vector<int32_t> drawn;
          std::vector<Guess> guesses;
          for (uint32_t i = 0; i < 3; ++i) {
            drawn.push_back(draw_from(q, drawn, uniform_draw(seed, 0, position, DrawPurpose::kDraft, i)));
            guesses.push_back({drawn.back(), &q});
          }
          guesses.insert(guesses.begin() + 1, {2, nullptr});
          guesses.push_back({draw_from(other, {}, uniform_draw(seed, 0, position, DrawPurpose::kDraft, 7)), &other});
          return accept(target, guesses, uniforms(seed, position)).token;
        },
        kDraws / 4);
    INFO(p);
    CHECK(p > kLeast);
  }
}

namespace {

// A toy model of three tokens ahead: each is drawn by the token before it.
constexpr size_t kWords = 4;
const TokenWeights& target_after(int32_t token) {
  static const std::array<TokenWeights, kWords> rows = {weights({0.6, 0.25, 0.1, 0.05}), weights({0.1, 0.2, 0.3, 0.4}),
                                                        weights({0.25, 0.25, 0.25, 0.25}),
                                                        weights({0.7, 0.1, 0.1, 0.1})};
  return rows[static_cast<size_t>(token)];
}
const DraftDistribution& draft_after(int32_t token) {
  static const std::array<DraftDistribution, kWords> rows = {
      distribution({0.3f, 0.3f, 0.3f, 0.1f}), distribution({0.4f, 0.3f, 0.2f, 0.1f}),
      distribution({0.1f, 0.1f, 0.1f, 0.7f}), distribution({0.25f, 0.25f, 0.25f, 0.25f})};
  return rows[static_cast<size_t>(token)];
}

// Siblings behind a node at each depth: how many are drawn, and whether a chosen one stands in front of them.
struct Shape {
  std::vector<uint32_t> drawn;
  bool chosen = false;
};

// Three tokens as a step and those after it give them: through a tree of the shape, then plainly.
std::array<int32_t, 3> walk(const Shape& shape, uint64_t seed, uint64_t trial) {
  std::array<int32_t, 3> out = {};
  int32_t last = 1;
  bool inside = true;
  for (size_t depth = 0; depth < out.size(); ++depth) {
    const uint64_t position = 4 * trial + depth;
    const auto uniform = uniforms(seed, position);
    std::vector<Guess> guesses;
    std::vector<int32_t> drawn;
    const DraftDistribution& q = draft_after(last);
    if (inside && depth < shape.drawn.size()) {
      if (shape.chosen) guesses.push_back({2, nullptr});
      for (uint32_t i = 0; i < shape.drawn[depth]; ++i) {
        drawn.push_back(draw_from(q, drawn, uniform_draw(seed, 0, position, DrawPurpose::kDraft, i)));
        guesses.push_back({drawn.back(), &q});
      }
    }
    const Verdict verdict = accept(target_after(last), guesses, uniform);
    inside = verdict.guess >= 0;
    out[depth] = last = verdict.token;
  }
  return out;
}

}  // namespace

TEST_CASE("chains and trees of several shapes keep the distribution of whole texts") {
  const Shape shapes[] = {{{1, 1, 1}}, {{2, 2, 2}}, {{4}}, {{3, 1}}, {{1, 3, 2}}, {{2, 1, 1}, true}};
  for (const Shape& shape : shapes) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      std::vector<double> counts(kWords * kWords * kWords);
      for (uint64_t trial = 0; trial < kDraws / 4; ++trial) {
        const auto text = walk(shape, seed, trial);
        ++counts[static_cast<size_t>((text[0] * 4 + text[1]) * 4 + text[2])];
      }
      double chi = 0.0;
      for (size_t i = 0; i < counts.size(); ++i) {
        const auto a = static_cast<int32_t>(i / 16), b = static_cast<int32_t>(i / 4 % 4);
        const double p =
            target_after(1).weights[i / 16] * target_after(a).weights[i / 4 % 4] * target_after(b).weights[i % 4];
        const double expected = p * static_cast<double>(kDraws / 4);
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
      }
      INFO(seed << ": " << chi);
      CHECK(tail(chi, 63) > kLeast);
    }
  }
}

TEST_CASE("chosen guesses are accepted as often as the target gives them") {
  const TokenWeights target = weights(kTargets[0]);
  int64_t first = 0, second = 0;
  const double p = least_p_value(
      target,
      [&](uint64_t seed, uint64_t position) {
        const std::array<Guess, 2> guesses = {Guess{1, nullptr}, Guess{0, nullptr}};
        const Verdict verdict = accept(target, guesses, uniforms(seed, position));
        first += verdict.guess == 0;
        second += verdict.guess == 1;
        return verdict.token;
      },
      kDraws);
  CHECK(p > kLeast);
  CHECK(static_cast<double>(first) / (4.0 * kDraws) == Approx(0.25).margin(0.002));
  CHECK(static_cast<double>(second) / (4.0 * kDraws) == Approx(0.6).margin(0.002));
}

TEST_CASE("a draft like the target is always accepted, one without its tokens never") {
  const TokenWeights target = weights({0.5, 0.25, 0.25});
  const DraftDistribution same = distribution({0.5f, 0.25f, 0.25f}), apart = distribution({0.0f, 0.0f, 0.0f, 1.0f});
  for (uint64_t i = 0; i < 10000; ++i) {
    const Guess guess{draw_from(same, {}, uniform_draw(3, 0, i, DrawPurpose::kDraft)), &same};
    REQUIRE(accept(target, {&guess, 1}, uniforms(3, i)).guess == 0);
    const Guess wrong{3, &apart};
    const Verdict verdict = accept(target, {&wrong, 1}, uniforms(3, i));
    REQUIRE(verdict.guess == -1);
    REQUIRE(verdict.token < 3);
  }
}

TEST_CASE("the test finds a wrong rule: an argmax draft whose ratio says that it was drawn") {
  const TokenWeights target = weights(kTargets[0]);
  const DraftDistribution q = distribution({0.4f, 0.3f, 0.2f, 0.1f});
  CHECK(least_p_value(
            target,
            [&](uint64_t seed, uint64_t position) {
              const Guess guess{0, &q};
              return accept(target, {&guess, 1}, uniforms(seed, position)).token;
            },
            kDraws / 4) < 1e-9);
}

}  // namespace headrace::speculation
