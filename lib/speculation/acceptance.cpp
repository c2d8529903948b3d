#include "speculation/acceptance.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "sampling/weighted_draw.h"

namespace headrace::speculation {
namespace {

// What of a distribution is left: ids ascending, probabilities.
class Remainder {
 public:
  explicit Remainder(const TokenWeights& target) : ids_(target.ids), left_(target.weights) {
    scale(std::accumulate(left_.begin(), left_.end(), 0.0));
  }

  double probability(int32_t token) const {
    const auto at = place(token);
    return at < ids_.size() ? left_[at] : 0.0;
  }

  // The tokens' probabilities, less these. Nothing changes where nothing would be left.
  void subtract(std::span<const std::pair<int32_t, double>> taken) {
    std::vector<double> rest = left_;
    for (const auto& [token, probability] : taken) {
      if (const auto at = place(token); at < ids_.size()) rest[at] = std::max(0.0, rest[at] - probability);
    }
    const double sum = std::accumulate(rest.begin(), rest.end(), 0.0);
    if (!(sum > 0.0)) return;
    left_ = std::move(rest);
    scale(sum);
  }

  int32_t draw(double uniform) const { return draw_by_weight(ids_, left_, uniform); }

 private:
  size_t place(int32_t token) const {
    const auto found = std::lower_bound(ids_.begin(), ids_.end(), token);
    return found != ids_.end() && *found == token ? static_cast<size_t>(found - ids_.begin()) : ids_.size();
  }
  void scale(double sum) {
    for (double& p : left_) p /= sum;
  }

  std::vector<int32_t> ids_;
  std::vector<double> left_;
};

// What a guess was drawn from: its distribution without the tokens drawn from it before.
std::vector<std::pair<int32_t, double>> drawn_from(const DraftDistribution& distribution,
                                                   std::span<const Guess> earlier) {
  std::vector<std::pair<int32_t, double>> out;
  double sum = 0.0;
  for (size_t i = 0; i < distribution.ids.size(); ++i) {
    const int32_t token = distribution.ids[i];
    const bool gone = std::any_of(earlier.begin(), earlier.end(), [&](const Guess& guess) {
      return guess.from == &distribution && guess.token == token;
    });
    if (gone) continue;
    const auto probability = static_cast<double>(distribution.probabilities[i]);
    out.emplace_back(token, probability);
    sum += probability;
  }
  if (sum > 0.0) {
    for (auto& [token, probability] : out) probability /= sum;
  }
  return out;
}

}  // namespace

Verdict accept(const TokenWeights& target, std::span<const Guess> guesses, const Uniforms& uniform) {
  Remainder left(target);
  for (size_t i = 0; i < guesses.size(); ++i) {
    const Guess& guess = guesses[i];
    const double p = left.probability(guess.token);
    std::vector<std::pair<int32_t, double>> q;
    if (guess.from != nullptr) q = drawn_from(*guess.from, guesses.first(i));
    const auto own = std::find_if(q.begin(), q.end(), [&](const auto& entry) { return entry.first == guess.token; });
    // A token that its distribution lacks was not drawn from it: it counts as chosen.
    const double drawn_with = own != q.end() ? own->second : 1.0;
    if (own == q.end()) q.assign(1, {guess.token, 1.0});
    if (uniform(DrawPurpose::kAcceptance, static_cast<uint32_t>(i)) * drawn_with < p) {
      return {guess.token, static_cast<int32_t>(i)};
    }
    left.subtract(q);
  }
  return {left.draw(uniform(DrawPurpose::kResidual, 0)), -1};
}

}  // namespace headrace::speculation
