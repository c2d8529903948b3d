#include "cpu/experts.h"

#include <algorithm>

#include "cpu/elementwise.h"

namespace headrace {

// A counting sort of the visits by expert; within one, rows keep their order.
void CpuExperts::group_rows(const ExpertsParams& p) {
  const auto visits = static_cast<size_t>(p.num_tokens * p.top_k);
  std::vector<int64_t> next(p.all_experts.size() + 1, 0);
  for (size_t i = 0; i < visits; ++i) ++next[static_cast<size_t>(p.experts[i]) + 1];
  used_.clear();
  starts_.assign(1, 0);
  for (size_t e = 0; e < p.all_experts.size(); ++e) {
    if (next[e + 1] > 0) {
      used_.push_back(static_cast<int32_t>(e));
      starts_.push_back(starts_.back() + next[e + 1]);
    }
    next[e + 1] += next[e];
  }
  place_.resize(visits);
  visits_.resize(visits);
  for (size_t i = 0; i < visits; ++i) {
    place_[i] = next[static_cast<size_t>(p.experts[i])]++;
    visits_[static_cast<size_t>(place_[i])] = static_cast<int64_t>(i);
  }
}

void CpuExperts::run(const ExpertsParams& p, ThreadPool& pool, const KernelTable& kernels) {
  if (p.num_tokens == 0) return;
  group_rows(p);
  const int64_t visits = starts_.back(), hidden = p.hidden_size, inner = p.intermediate_size;
  const bool gated = p.all_experts[0].gate != nullptr;
  float* const gate = gate_.reserve_floats(visits * inner);
  float* const up = gated ? up_.reserve_floats(visits * inner) : gate;
  float* const down = down_.reserve_floats(visits * hidden);

  rows_.resize(static_cast<size_t>(visits));
  float* const weighted = p.weight_inputs ? weighted_.reserve_floats(visits * hidden) : nullptr;
  for (int64_t row = 0; row < visits; ++row) {
    const int64_t token = visits_[static_cast<size_t>(row)] / p.top_k;
    rows_[static_cast<size_t>(row)] = p.weight_inputs ? weighted + row * hidden : p.x + token * hidden;
  }
  if (p.weight_inputs) {
    pool.run(visits, [&](int64_t row, int) {
      const int64_t visit = visits_[static_cast<size_t>(row)];
      std::copy_n(p.x + visit / p.top_k * hidden, hidden, weighted + row * hidden);
      kernels.scale(p.weights[visit], hidden, weighted + row * hidden);
    });
  }

  list_.clear();
  for (size_t g = 0; g < used_.size(); ++g) {
    const ExpertWeights& expert = p.all_experts[static_cast<size_t>(used_[g])];
    if (gated) list_.push_back({g, {expert.gate, expert.gate_bias, gate + starts_[g] * inner, inner, false}});
    list_.push_back({g, {expert.up, expert.up_bias, up + starts_[g] * inner, inner, false}});
  }
  products_.run(starts_, rows_, hidden, list_, pool, kernels);

  for_elements(pool, visits * inner, [&](int64_t at, int64_t count) {
    activate(kernels, p.activation, p.activation_limit, gate + at, gated ? up + at : nullptr, count, gate + at);
  });

  list_.clear();
  for (size_t g = 0; g < used_.size(); ++g) {
    const ExpertWeights& expert = p.all_experts[static_cast<size_t>(used_[g])];
    list_.push_back({g, {expert.down, expert.down_bias, down + starts_[g] * hidden, hidden, false}});
  }
  for (int64_t row = 0; row < visits; ++row) rows_[static_cast<size_t>(row)] = gate + row * inner;
  products_.run(starts_, rows_, inner, list_, pool, kernels);

  // Each visit's row is used once, so it may be weighted in place.
  pool.run(p.num_tokens, [&](int64_t token, int) {
    float* sum = nullptr;
    for (int64_t visit = token * p.top_k; visit < (token + 1) * p.top_k; ++visit) {
      float* row = down + place_[static_cast<size_t>(visit)] * hidden;
      if (!p.weight_inputs) kernels.scale(p.weights[visit], hidden, row);
      if (sum == nullptr) {
        sum = row;
      } else {
        kernels.add(row, hidden, sum);
      }
    }
    float* out = p.out + token * hidden;
    if (p.accumulate) {
      kernels.add(sum, hidden, out);
    } else {
      std::copy_n(sum, hidden, out);
    }
  });
}

void CpuExperts::run(const HeadLinearParams& p, ThreadPool& pool, const KernelTable& kernels) {
  if (p.num_tokens == 0) return;
  starts_.assign(1, 0);
  rows_.clear();
  list_.clear();
  for (size_t h = 0; h < p.weights.size(); ++h) {
    const auto head = static_cast<int64_t>(h);
    for (int64_t token = 0; token < p.num_tokens; ++token) {
      rows_.push_back(p.x + token * p.x_row_stride + head * p.x_head_stride);
    }
    starts_.push_back(static_cast<int64_t>(rows_.size()));
    list_.push_back({h, {p.weights[h], nullptr, p.y + head * p.y_head_stride, p.y_row_stride, false}});
  }
  products_.run(starts_, rows_, p.in_features, list_, pool, kernels);
}

}  // namespace headrace
