#include "ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace headrace {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void fill_scores(const RouteParams& p, const float* logits, std::vector<double>& scores) {
  const auto count = static_cast<size_t>(p.num_experts);
  if (p.score == RouterScore::kSigmoid) {
    for (size_t e = 0; e < count; ++e) scores[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])));
    return;
  }
  if (p.score == RouterScore::kSqrtSoftplus) {
    for (size_t e = 0; e < count; ++e) {
      const double x = static_cast<double>(logits[e]);
      scores[e] = std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
    }
    return;
  }
  const double top = static_cast<double>(*std::max_element(logits, logits + count));
  double sum = 0.0;
  for (size_t e = 0; e < count; ++e) sum += scores[e] = std::exp(static_cast<double>(logits[e]) - top);
  for (size_t e = 0; e < count; ++e) scores[e] /= sum;
}

// The `count` largest of values in descending order, of equal ones the lower index.
void pick_largest(const std::vector<double>& values, int32_t count, std::vector<int32_t>& order) {
  order.resize(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const double left = values[static_cast<size_t>(a)], right = values[static_cast<size_t>(b)];
    return left > right || (left == right && a < b);
  });
  order.resize(static_cast<size_t>(count));
}

}  // namespace

RowRouter::RowRouter(const RouteParams& params)
    : p_(params),
      scores_(static_cast<size_t>(params.num_experts)),
      choice_(scores_),
      groups_(static_cast<size_t>(params.num_groups)),
      chosen_(scores_.size()) {}

void RowRouter::route(int64_t row) {
  fill_scores(p_, p_.logits + row * p_.num_experts, scores_);
  if (p_.given != nullptr) {
    chosen_.assign(p_.given + row * p_.top_k, p_.given + (row + 1) * p_.top_k);
  } else {
    choose();
  }
  double sum = 0.0;
  for (const int32_t expert : chosen_) sum += scores_[static_cast<size_t>(expert)];
  const double divisor =
      p_.normalize ? std::max(sum, static_cast<double>(p_.sum_floor)) + static_cast<double>(p_.sum_added) : 1.0;
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const size_t at = static_cast<size_t>(row * p_.top_k) + i;
    p_.experts[at] = chosen_[i];
    const double own = p_.expert_scales == nullptr ? 1.0 : static_cast<double>(p_.expert_scales[chosen_[i]]);
    p_.weights[at] = static_cast<float>(scores_[static_cast<size_t>(chosen_[i])] / divisor * p_.scale * own);
  }
}

void RowRouter::choose() {
  for (size_t e = 0; e < scores_.size(); ++e) {
    choice_[e] = scores_[e] + (p_.correction == nullptr ? 0.0 : static_cast<double>(p_.correction[e]));
    // Not ordered, hence never preferred; two of them compare as equal.
    if (std::isnan(choice_[e])) choice_[e] = std::numeric_limits<double>::lowest();
  }
  if (p_.top_groups < p_.num_groups) drop_groups();
  pick_largest(choice_, p_.top_k, chosen_);
  std::sort(chosen_.begin(), chosen_.end());
}

void RowRouter::drop_groups() {
  const size_t size = scores_.size() / groups_.size();
  for (size_t g = 0; g < groups_.size(); ++g) {
    double best = kNever, second = kNever;
    for (size_t e = g * size; e < (g + 1) * size; ++e) {
      if (choice_[e] > best) {
        second = best;
        best = choice_[e];
      } else {
        second = std::max(second, choice_[e]);
      }
    }
    groups_[g] = p_.group_score == GroupScore::kMax || size == 1 ? best : best + second;
  }
  pick_largest(groups_, p_.top_groups, chosen_);
  std::sort(chosen_.begin(), chosen_.end());
  size_t next = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (next < chosen_.size() && static_cast<size_t>(chosen_[next]) == g) {
      ++next;
    } else {
      std::fill_n(choice_.begin() + static_cast<int64_t>(g * size), size, kNever);
    }
  }
}

}  // namespace headrace
