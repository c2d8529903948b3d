// The cache's layout read and written one element at a time, and attention as its definition says.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/reference_backend.h"
#include "ops/top_positions.h"
#include "tensor/half.h"

namespace headrace {
namespace {

template <class T>
T load_at(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store_at(std::byte* bytes, size_t index, T value) {
  std::memcpy(bytes + index * sizeof(T), &value, sizeof(T));
}

// Index of an element among the codes of a head's keys, and of its scale among their scales.
size_t key_index(const KvLayout& layout, int32_t offset, int32_t d) {
  return (static_cast<size_t>(offset / kKvTile) * static_cast<size_t>(layout.head_dim) + static_cast<size_t>(d)) *
             kKvTile +
         static_cast<size_t>(offset % kKvTile);
}
size_t key_scale_index(const KvLayout& layout, int32_t offset, int32_t group) {
  return (static_cast<size_t>(offset / kKvTile) * static_cast<size_t>(layout.scale_groups()) +
          static_cast<size_t>(group)) *
             kKvTile +
         static_cast<size_t>(offset % kKvTile);
}
size_t value_index(const KvLayout& layout, int32_t offset, int32_t d) {
  return static_cast<size_t>(offset) * static_cast<size_t>(layout.head_dim) + static_cast<size_t>(d);
}
size_t value_scale_index(const KvLayout& layout, int32_t offset, int32_t group) {
  return static_cast<size_t>(offset) * static_cast<size_t>(layout.scale_groups()) + static_cast<size_t>(group);
}

float cached(const KvLayout& layout, const std::byte* codes, size_t index, size_t scale_index) {
  switch (layout.dtype) {
    case KvDType::kF32: return load_at<float>(codes, index);
    case KvDType::kF16: return half_to_float(load_at<uint16_t>(codes, index));
    case KvDType::kBF16: return bfloat16_to_float(load_at<uint16_t>(codes, index));
    case KvDType::kQ8: break;
  }
  const float scale = half_to_float(load_at<uint16_t>(codes + layout.code_bytes(), scale_index));
  return static_cast<float>(load_at<int8_t>(codes, index)) * scale;
}

// Stores a key or a value of one head; index and scale_index say where each element lies.
template <class Index, class ScaleIndex>
void store_vector(const KvLayout& layout, const float* x, std::byte* codes, Index index, ScaleIndex scale_index) {
  for (int32_t d = 0; d < layout.head_dim && layout.dtype != KvDType::kQ8; ++d) {
    switch (layout.dtype) {
      case KvDType::kF32: store_at(codes, index(d), x[d]); break;
      case KvDType::kF16: store_at(codes, index(d), float_to_half(x[d])); break;
      case KvDType::kBF16: store_at(codes, index(d), float_to_bfloat16(x[d])); break;
      case KvDType::kQ8: break;
    }
  }
  if (layout.dtype != KvDType::kQ8) return;
  for (int32_t group = 0; group < layout.scale_groups(); ++group) {
    const int32_t begin = group * kKvQ8Group, end = std::min(begin + kKvQ8Group, layout.head_dim);
    float largest = 0.0f;
    bool finite = true;
    for (int32_t d = begin; d < end; ++d) {
      finite = finite && std::isfinite(x[d]);
      largest = std::max(largest, std::fabs(x[d]));
    }
    // A group with a NaN or an infinity reads back as NaN; a scale beyond float16 saturates.
    const uint16_t half = finite ? float_to_half(std::min(largest / 127.0f, 65504.0f)) : uint16_t{0x7e00};
    const float scale = half_to_float(half);
    for (int32_t d = begin; d < end; ++d) {
      const float code = !finite || scale == 0.0f ? 0.0f : std::clamp(x[d] / scale, -127.0f, 127.0f);
      store_at(codes, index(d), static_cast<int8_t>(std::nearbyint(code)));
    }
    store_at(codes + layout.code_bytes(), scale_index(group), half);
  }
}

void normalize(float* head, int32_t size, const float* weight, float eps, float offset) {
  double sum = 0.0;
  for (int32_t d = 0; d < size; ++d) sum += static_cast<double>(head[d]) * static_cast<double>(head[d]);
  const double factor = 1.0 / std::sqrt(sum / size + static_cast<double>(eps));
  for (int32_t d = 0; d < size; ++d) {
    head[d] = static_cast<float>(static_cast<double>(head[d]) * factor *
                                 (static_cast<double>(weight[d]) + static_cast<double>(offset)));
  }
}

void rotate(const RopeStoreParams& p, int64_t token, float* head) {
  for (int32_t i = 0; i < p.rotary_dim / 2; ++i) {
    const int64_t axis = p.axes == nullptr ? 0 : p.axes[i];
    const double angle =
        static_cast<double>(p.positions[token * p.num_axes + axis]) * static_cast<double>(p.inv_freq[i]);
    const double cosine = std::cos(angle) * static_cast<double>(p.attention_factor);
    const double sine = std::sin(p.backwards ? -angle : angle) * static_cast<double>(p.attention_factor);
    float& first = head[p.rotary_begin + (p.interleaved ? 2 * i : i)];
    float& second = head[p.rotary_begin + (p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2)];
    const double a = static_cast<double>(first), b = static_cast<double>(second);
    first = static_cast<float>(a * cosine - b * sine);
    second = static_cast<float>(b * cosine + a * sine);
  }
}

// The positions that a row sees.
void seen_positions(const PagedAttentionParams& p, int32_t seq, int32_t token, std::vector<int32_t>& out) {
  if (p.selected.positions != nullptr) {
    const int32_t* first = p.selected.positions + token * p.selected.max_count;
    out.assign(first, first + p.selected.counts[token]);
    return;
  }
  const int32_t own = p.positions[token];
  const int32_t chunk_start = p.chunk > 0 ? own / p.chunk * p.chunk : 0;
  int32_t first = p.window > 0 ? std::max(chunk_start, own - p.window + 1) : chunk_start;
  int32_t last = own;
  if (p.sequence_ends != nullptr) {
    last = p.sequence_ends[seq] - 1;
    if (p.window > 0) last = std::min(last, own + p.window - 1);
  }
  if (p.spans != nullptr && p.spans[2 * token + 1] > 0) {
    const int32_t begin = p.spans[2 * token], end = p.spans[2 * token + 1];
    if (p.span_alone) first = begin;
    last = p.span_alone ? end - 1 : std::max(last, end - 1);
  }
  out.resize(static_cast<size_t>(last - first + 1));
  std::iota(out.begin(), out.end(), first);
}

// The numbers of the runs that a row sees.
void seen_runs(const PagedAttentionParams& p, int32_t token, std::vector<int32_t>& out) {
  out.clear();
  if (p.runs.cache == nullptr) return;
  const SelectedPositions& selected = p.runs.selected;
  if (selected.positions != nullptr) {
    const int32_t* first = selected.positions + token * selected.max_count;
    out.assign(first, first + selected.counts[token]);
    return;
  }
  out.resize(static_cast<size_t>(p.runs.layout.rows_before(p.positions[token])));
  std::iota(out.begin(), out.end(), 0);
}

}  // namespace

float cached_key(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d) {
  if (!layout.has_keys()) return cached_value(layout, head, offset, d);
  return cached(layout, head, key_index(layout, offset, d), key_scale_index(layout, offset, d / kKvQ8Group));
}

float cached_value(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d) {
  return cached(layout, head + layout.values_offset(), value_index(layout, offset, d),
                value_scale_index(layout, offset, d / kKvQ8Group));
}

void reference_rope_and_store_kv(const RopeStoreParams& p) {
  const KvLayout& layout = p.layout;
  const int64_t head_dim = layout.head_dim;
  const auto prepare = [&](int64_t token, float* head, const float* norm) {
    const auto normalize_head = [&] {
      if (norm != nullptr) normalize(head, layout.head_dim, norm, p.norm_eps, p.norm_weight_offset);
    };
    if (!p.norm_after_rotation) normalize_head();
    if (p.inv_freq != nullptr) rotate(p, token, head);
    if (p.norm_after_rotation) normalize_head();
  };
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    for (int32_t h = 0; h < p.num_heads; ++h) {
      float* q = p.q + (token * p.num_heads + h) * head_dim;
      prepare(token, q, p.q_norm);
      if (p.q_scale == nullptr) continue;
      for (int64_t d = 0; d < head_dim; ++d) q[d] *= p.q_scale[token];
    }
    if (p.k == nullptr) continue;
    const int64_t slot = p.slots[token];
    const int32_t offset = layout.row_of(slot % layout.block_size);
    std::byte* block = p.cache + static_cast<size_t>(slot / layout.block_size) * layout.block_bytes();
    for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
      float* key = p.k + (token * layout.num_kv_heads + h) * head_dim;
      prepare(token, key, p.k_norm);
      std::byte* head = block + static_cast<size_t>(h) * layout.head_bytes();
      if (layout.has_keys()) {
        store_vector(
            layout, key, head, [&](int32_t d) { return key_index(layout, offset, d); },
            [&](int32_t group) { return key_scale_index(layout, offset, group); });
      }
      if (!layout.has_values()) continue;
      const float* value = layout.has_keys() ? p.v + (token * layout.num_kv_heads + h) * head_dim : key;
      store_vector(
          layout, value, head + layout.values_offset(), [&](int32_t d) { return value_index(layout, offset, d); },
          [&](int32_t group) { return value_scale_index(layout, offset, group); });
    }
  }
}

void reference_paged_attention(const PagedAttentionParams& p) {
  const KvLayout& layout = p.layout;
  const int32_t head_dim = layout.head_dim, group = p.num_heads / layout.num_kv_heads;
  std::vector<double> scores, out(static_cast<size_t>(head_dim));
  std::vector<int32_t> positions, runs;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int32_t token = p.query_start[seq]; token < p.query_start[seq + 1]; ++token) {
      seen_positions(p, seq, token, positions);
      seen_runs(p, token, runs);
      const size_t num_seen = positions.size() + runs.size();
      scores.resize(num_seen);
      for (int32_t h = 0; h < p.num_heads; ++h) {
        const auto element = [&](size_t i, int32_t d, bool key) {
          const bool is_run = i >= positions.size();
          const KvLayout& part = is_run ? p.runs.layout : layout;
          const int64_t last = part.last_token(is_run ? runs[i - positions.size()] : positions[i]);
          const auto block = static_cast<size_t>(p.block_tables[seq][last / part.block_size]);
          const std::byte* head = (is_run ? p.runs.cache : p.cache_of(seq)) + block * part.block_bytes() +
                                  static_cast<size_t>(h / group) * part.head_bytes();
          const int32_t row = part.row_of(last % part.block_size);
          return static_cast<double>(key ? cached_key(part, head, row, d) : cached_value(part, head, row, d));
        };
        const float* q = p.q + (static_cast<int64_t>(token) * p.num_heads + h) * head_dim;
        double top = p.sinks != nullptr ? static_cast<double>(p.sinks[h]) : -std::numeric_limits<double>::infinity();
        for (size_t i = 0; i < num_seen; ++i) {
          double score = 0.0;
          for (int32_t d = 0; d < head_dim; ++d) score += static_cast<double>(q[d]) * element(i, d, true);
          score *= static_cast<double>(p.scale);
          if (p.position_bias != nullptr && i < positions.size()) {
            const int64_t width = 2 * int64_t{p.bias_reach} + 1;
            const int32_t distance = std::clamp(positions[i] - p.positions[token], -p.bias_reach, p.bias_reach);
            score += static_cast<double>(p.position_bias[h * width + p.bias_reach + distance]);
          }
          if (p.logit_softcap > 0.0f) {
            const double cap = static_cast<double>(p.logit_softcap);
            score = cap * std::tanh(score / cap);
          }
          scores[i] = score;
          top = std::max(top, score);
        }
        double sum = p.sinks != nullptr ? std::exp(static_cast<double>(p.sinks[h]) - top) : 0.0;
        std::fill(out.begin(), out.end(), 0.0);
        for (size_t i = 0; i < num_seen; ++i) {
          const double weight = std::exp(scores[i] - top);
          sum += weight;
          for (int32_t d = 0; d < head_dim; ++d) {
            out[static_cast<size_t>(d)] += weight * element(i, d, false);
          }
        }
        float* result = p.out + (static_cast<int64_t>(token) * p.num_heads + h) * head_dim;
        for (int32_t d = 0; d < head_dim; ++d) result[d] = static_cast<float>(out[static_cast<size_t>(d)] / sum);
      }
    }
  }
}

void reference_select_positions(const SelectPositionsParams& p) {
  const KvLayout& layout = p.layout;
  const int64_t head_dim = layout.head_dim;
  TopPositions top;
  std::vector<float> scores;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int64_t token = p.query_start[seq]; token < p.query_start[seq + 1]; ++token) {
      scores.resize(static_cast<size_t>(layout.rows_before(p.positions[token])));
      for (size_t number = 0; number < scores.size(); ++number) {
        const int64_t last = layout.last_token(static_cast<int64_t>(number));
        const auto block = static_cast<size_t>(p.block_tables[seq][last / layout.block_size]);
        const int32_t offset = layout.row_of(last % layout.block_size);
        double score = 0.0;
        for (int64_t h = token * p.num_heads; h < (token + 1) * p.num_heads; ++h) {
          double product = 0.0;
          for (int32_t d = 0; d < layout.head_dim; ++d) {
            product += static_cast<double>(p.q[h * head_dim + d]) *
                       static_cast<double>(cached_key(layout, p.cache + block * layout.block_bytes(), offset, d));
          }
          // Not std::max, which would make a NaN 0.
          score += static_cast<double>(p.weights[h]) * (product < 0.0 ? 0.0 : product);
        }
        scores[number] = static_cast<float>(score);
      }
      const int64_t count = std::min<int64_t>(p.top_k, static_cast<int64_t>(scores.size()));
      p.counts[token] = static_cast<int32_t>(count);
      top.pick(scores, count, p.selected + token * p.top_k);
    }
  }
}

}  // namespace headrace
