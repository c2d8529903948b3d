#include "cpu/rope_table.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace headrace {

RopeTable::Rows RopeTable::rows(const RopeStoreParams& params, ThreadPool& pool) {
  const int64_t num_tokens = params.num_tokens, half = params.rotary_dim / 2;
  const std::span<const int32_t> positions(params.positions, static_cast<size_t>(num_tokens * params.num_axes));
  const std::span<const int32_t> axes(params.axes, params.axes == nullptr ? 0 : static_cast<size_t>(half));
  for (const Entry& entry : entries_) {
    if (entry.attention_factor == params.attention_factor && entry.backwards == params.backwards &&
        std::equal(entry.inv_freq.begin(), entry.inv_freq.end(), params.inv_freq, params.inv_freq + half) &&
        std::ranges::equal(entry.axes, axes) && std::ranges::equal(entry.positions, positions)) {
      return {entry.cosine.data(), entry.sine.data()};
    }
  }
  Entry& entry = entries_[next_];
  next_ = (next_ + 1) % kKept;
  entry.positions.clear();  // names no rows until there is memory for all of them
  entry.inv_freq.assign(params.inv_freq, params.inv_freq + half);
  entry.attention_factor = params.attention_factor;
  entry.backwards = params.backwards;
  entry.cosine.resize(static_cast<size_t>(num_tokens * half));
  entry.sine.resize(static_cast<size_t>(num_tokens * half));
  entry.axes.assign(axes.begin(), axes.end());
  entry.positions.assign(positions.begin(), positions.end());
  pool.run(num_tokens, [&](int64_t token, int) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t axis = axes.empty() ? 0 : axes[static_cast<size_t>(i)];
      const double angle = static_cast<double>(params.positions[token * params.num_axes + axis]) *
                           static_cast<double>(params.inv_freq[i]);
      const size_t at = static_cast<size_t>(token * half + i);
      entry.cosine[at] = static_cast<float>(std::cos(angle) * static_cast<double>(params.attention_factor));
      entry.sine[at] = static_cast<float>(std::sin(params.backwards ? -angle : angle) *
                                          static_cast<double>(params.attention_factor));
    }
  });
  return {entry.cosine.data(), entry.sine.data()};
}

}  // namespace headrace
