#include "model/rope_length.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace headrace {

namespace {

constexpr int64_t kLongest = int64_t{1} << 28;

template <class See>
void see_ropes(const GqaAttention& attention, const See& see) {
  see(attention.rope);
}
template <class See>
void see_ropes(const LatentAttention& attention, const See& see) {
  see(attention.rope);
}
template <class See>
void see_ropes(const SparseLatentAttention& attention, const See& see) {
  see(attention.latent.rope);
  if (attention.indexer) see(attention.indexer->rope);
}
template <class See>
void see_ropes(const AttentionBesideMamba& both, const See& see) {
  see(both.attention.rope);
}
template <class Other, class See>
void see_ropes(const Other&, const See&) {}

template <class See>
void for_each_rope(const ModelSpec& spec, const See& see) {
  for (const LayerSpec& layer : spec.layers) {
    std::visit([&](const auto& attention) { see_ropes(attention, see); }, layer.attention);
  }
}

}  // namespace

int64_t rope_length(const ModelSpec& spec, int64_t length) {
  int64_t chosen = 0;
  for_each_rope(spec, [&](const RopeSpec& rope) {
    if (length <= rope.short_length) return;
    if (rope.dynamic_factor != 0) chosen = length;
    if (!rope.long_inv_freq.empty()) chosen = std::max<int64_t>(chosen, int64_t{rope.short_length} + 1);
  });
  return chosen;
}

int64_t longest_of_rope_length(const ModelSpec& spec, int64_t rope_length) {
  int64_t longest = std::numeric_limits<int64_t>::max();
  for_each_rope(spec, [&](const RopeSpec& rope) {
    const int64_t stretch = rope.short_length;
    if (rope.dynamic_factor != 0) {
      longest = std::min(longest, std::max<int64_t>((rope_length + stretch - 1) / stretch, 1) * stretch);
    } else if (!rope.long_inv_freq.empty() && rope_length <= stretch) {
      longest = std::min(longest, stretch);
    }
  });
  return longest;
}

int64_t longest_sequence(const ModelSpec& spec) {
  return most_dynamic_pairs(spec) > 0 ? kLongest : spec.max_position_embeddings;
}

int64_t most_dynamic_pairs(const ModelSpec& spec) {
  int64_t most = 0;
  for_each_rope(spec, [&](const RopeSpec& rope) {
    if (rope.dynamic_factor != 0) most = std::max<int64_t>(most, rope.rotary_dim / 2);
  });
  return most;
}

std::span<const float> rope_frequencies(const RopeSpec& rope, int64_t rope_length, std::span<float> scratch) {
  if (rope_length <= rope.short_length) return rope.inv_freq;
  if (!rope.long_inv_freq.empty()) return rope.long_inv_freq;
  if (rope.dynamic_factor == 0) return rope.inv_freq;
  // torch computes all of this in float32.
  const auto dim = static_cast<float>(rope.rotary_dim);
  const float stretch = static_cast<float>(rope.dynamic_factor) * static_cast<float>(rope_length) /
                            static_cast<float>(rope.short_length) -
                        static_cast<float>(rope.dynamic_factor - 1.0);
  const float theta = static_cast<float>(rope.theta) * std::pow(stretch, dim / (dim - 2.0f));
  const auto frequencies = scratch.first(static_cast<size_t>(rope.rotary_dim) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0f / std::pow(theta, static_cast<float>(2 * i) / dim);
  }
  return frequencies;
}

}  // namespace headrace
