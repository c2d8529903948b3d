// Register tiles of attention: a few query rows times a few panels of sixteen keys (scores) or of sixteen value
// lanes. Keys and values come either widened to float32 by the caller, once for many rows, or straight from the cache
// in their own type, when the rows are too few to pay for that. Both ways multiply the same floats in the same order.
#pragma once

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// Positions per step of the online softmax, and their tiles of sixteen (kKvTile).
constexpr int kChunk = 64;
constexpr int kChunkTiles = kChunk / kPanel;
constexpr int kQ8Group = 32;
// The numbers of KvDType in tensor/kv_layout.h.
enum : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8 = 3 };

template <int32_t kType>
HEADRACE_INLINE V16 load_cached(const uint8_t* p) {
  if constexpr (kType == kF32) return load(reinterpret_cast<const float*>(p));
  if constexpr (kType == kF16) return load_f16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (kType == kBF16) return load_bf16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (kType == kQ8) return load_i8(reinterpret_cast<const int8_t*>(p));
}

template <int32_t kType>
constexpr int kBytes = kType == kF32  ? 4
                       : kType == kQ8 ? 1
                                      : 2;

HEADRACE_INLINE float scalar_f16(const uint8_t* p) {
  uint16_t half;
  memcpy(&half, p, 2);
  return widen_half(half);
}

HEADRACE_INLINE PanelType panel_type(int32_t kv_dtype) {
  return kv_dtype == kF32 ? PanelType::kF32 : kv_dtype == kF16 ? PanelType::kF16 : PanelType::kBF16;
}

// One token's float32 values of Q8.
HEADRACE_INLINE void widen_codes(const uint8_t* row, const uint8_t* row_scales, int32_t head_dim, float* out) {
  const int8_t* codes = reinterpret_cast<const int8_t*>(row);
  for (int32_t begin = 0; begin < head_dim; begin += kQ8Group) {
    const V16 f = set1(scalar_f16(row_scales + begin / kQ8Group * 2));
    const int32_t end = begin + kQ8Group < head_dim ? begin + kQ8Group : head_dim;
    int32_t d = begin;
    for (; d + kPanel <= end; d += kPanel) store(out + d, mul(load_i8(codes + d), f));
    if (d < end) {
      int8_t last[kPanel] = {};
      memcpy(last, codes + d, static_cast<size_t>(end - d));
      store_partial(out + d, mul(load_i8(last), f), end - d);
    }
  }
}

// One token's float32 values.
HEADRACE_INLINE void widen_row(int32_t kv_dtype, const uint8_t* row, const uint8_t* row_scales, int32_t head_dim,
                               float* out) {
  if (kv_dtype == kQ8) return widen_codes(row, row_scales, head_dim, out);
  widen(panel_type(kv_dtype), row, out, head_dim);
}

// Puts a row into tiles of keys [head_dim][16], as key j of them.
HEADRACE_INLINE void turn_into_key(const float* row, int32_t head_dim, int32_t j, float* keys) {
  float* key = keys + static_cast<int64_t>(j / kPanel) * head_dim * kPanel + j % kPanel;
  for (int32_t d = 0; d < head_dim; ++d) key[static_cast<int64_t>(d) * kPanel] = row[d];
}

// One chunk's keys or values: where its tiles of sixteen positions lie. Tiles that no row sees are null.
// `ahead` is what will be needed one chunk later (or the same again): it is asked for while this one is multiplied,
// line by line, so that memory and arithmetic overlap.
struct ChunkSource {
  const uint8_t* tile[kChunkTiles];
  const uint8_t* scales[kChunkTiles];  // of Q8
  const uint8_t* ahead[kChunkTiles];
};

HEADRACE_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// scores[r * kChunk + panel * 16 + lane] = sum over d of q[d * kTileRows + r] * key[d], for kPanels tiles of keys.
template <int32_t kType, bool kAhead, int kRows, int kPanels>
void score_panels(const ChunkSource& keys, int first, const float* q, int32_t depth, float* scores) {
  constexpr int kStep = kPanel * kBytes<kType>;
  V16 sums[kRows][kPanels];
  const uint8_t* at[kPanels];
  const uint8_t* ahead[kPanels];
  HEADRACE_UNROLL
  for (int g = 0; g < kPanels; ++g) {
    at[g] = keys.tile[first + g];
    ahead[g] = keys.ahead[first + g];
  }
  HEADRACE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HEADRACE_UNROLL
    for (int g = 0; g < kPanels; ++g) sums[r][g] = zero();
  }
  constexpr bool kScaled = kType == kQ8;
  const int32_t group = kScaled ? kQ8Group : depth;
  for (int32_t begin = 0; begin < depth; begin += group) {
    const int32_t end = begin + group < depth ? begin + group : depth;
    V16 factor[kPanels];
    if constexpr (kScaled) {
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) {
        factor[g] = load_cached<kF16>(keys.scales[first + g] + begin / kQ8Group * kPanel * 2);
      }
    }
    for (int64_t d = begin; d < end; ++d) {
      V16 key[kPanels];
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) {
        key[g] = load_cached<kType>(at[g] + d * kStep);
        if constexpr (kScaled) key[g] = mul(key[g], factor[g]);
        if constexpr (kAhead) prefetch(ahead[g] + d * kStep);
      }
      HEADRACE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const V16 value = set1(q[d * kTileRows + r]);
        HEADRACE_UNROLL
        for (int g = 0; g < kPanels; ++g) sums[r][g] = fma(value, key[g], sums[r][g]);
      }
    }
  }
  HEADRACE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HEADRACE_UNROLL
    for (int g = 0; g < kPanels; ++g) store(scores + r * kChunk + (first + g) * kPanel, sums[r][g]);
  }
}

// acc[r * stride + lane] = acc * shrink[r] + sum over positions j of [begin, end) of p[r * kChunk + j] * value[j], in
// order from zero, for kPanels panels of lanes. Rows of values are row_bytes apart.
template <int32_t kType, bool kAhead, int kRows, int kPanels>
void value_panels(const ChunkSource& values, int first, const float* p, int begin, int end, int64_t row_bytes,
                  int64_t scale_row_bytes, const float* shrink, float* acc, int64_t stride) {
  constexpr int kStep = kPanel * kBytes<kType>;
  V16 sums[kRows][kPanels];
  HEADRACE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HEADRACE_UNROLL
    for (int g = 0; g < kPanels; ++g) sums[r][g] = zero();
  }
  for (int tile = begin / kPanel; tile * kPanel < end; ++tile) {
    const int low = begin > tile * kPanel ? begin : tile * kPanel;
    const int high = end < tile * kPanel + kPanel ? end : tile * kPanel + kPanel;
    const int64_t skip = (low - tile * kPanel) * row_bytes + first * kStep;
    const uint8_t* at = values.tile[tile] + skip;
    [[maybe_unused]] const uint8_t* ahead = kAhead ? values.ahead[tile] + skip : nullptr;
    const uint8_t* scales = nullptr;
    if constexpr (kType == kQ8) scales = values.scales[tile] + (low - tile * kPanel) * scale_row_bytes;
    for (int64_t j = low; j < high; ++j) {
      V16 value[kPanels];
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) {
        value[g] = load_cached<kType>(at + g * kStep);
        if constexpr (kType == kQ8) {
          value[g] = mul(value[g], set1(scalar_f16(scales + (first + g) * kPanel / kQ8Group * 2)));
        }
        if constexpr (kAhead) prefetch(ahead + g * kStep);
      }
      HEADRACE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const V16 weight = set1(p[r * kChunk + j]);
        HEADRACE_UNROLL
        for (int g = 0; g < kPanels; ++g) sums[r][g] = fma(weight, value[g], sums[r][g]);
      }
      at += row_bytes;
      if constexpr (kAhead) ahead += row_bytes;
      if constexpr (kType == kQ8) scales += scale_row_bytes;
    }
  }
  HEADRACE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const V16 factor = set1(shrink[r]);
    HEADRACE_UNROLL
    for (int g = 0; g < kPanels; ++g) {
      float* out = acc + r * stride + (first + g) * kPanel;
      store(out, fma(load(out), factor, sums[r][g]));
    }
  }
}

// Runs step(first panel, panels) over [first, end), the widest steps first.
template <int kWidest, class Step>
HEADRACE_INLINE void for_panels(int first, int end, const Step& step) {
  if constexpr (kWidest >= 8) {
    for (; first + 8 <= end; first += 8) step.template operator()<8>(first);
  }
  if constexpr (kWidest >= 4) {
    for (; first + 4 <= end; first += 4) step.template operator()<4>(first);
  }
  if constexpr (kWidest >= 2) {
    for (; first + 2 <= end; first += 2) step.template operator()<2>(first);
  }
  for (; first < end; ++first) step.template operator()<1>(first);
}

template <int32_t kType, bool kAhead, int kRows = kTileRows>
void score_tile(int rows, const ChunkSource& keys, int first, int end, const float* q, int32_t depth, float* scores) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return score_tile<kType, kAhead, kRows - 1>(rows, keys, first, end, q, depth, scores);
  }
  // A chunk has four tiles; Q8 keeps a register of scales for each.
  constexpr int kWidest = widest_panels(kRows) < kChunkTiles ? widest_panels(kRows) : kChunkTiles;
  constexpr int kUsed = kType == kQ8 && kRows > 4 && kWidest > 2 ? 2 : kWidest;
  for_panels<kUsed>(first, end, [&]<int kPanels>(int panel) {
    score_panels<kType, kAhead, kRows, kPanels>(keys, panel, q, depth, scores);
  });
}

template <int32_t kType, bool kAhead, int kRows = kTileRows>
void value_tile(int rows, int panels, const ChunkSource& values, const float* p, int begin, int end, int64_t row_bytes,
                int64_t scale_row_bytes, const float* shrink, float* acc, int64_t stride) {
  if constexpr (kRows > 1) {
    if (rows != kRows) {
      return value_tile<kType, kAhead, kRows - 1>(rows, panels, values, p, begin, end, row_bytes, scale_row_bytes,
                                                  shrink, acc, stride);
    }
  }
  for_panels<widest_panels(kRows)>(0, panels, [&]<int kPanels>(int panel) {
    value_panels<kType, kAhead, kRows, kPanels>(values, panel, p, begin, end, row_bytes, scale_row_bytes, shrink, acc,
                                                stride);
  });
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
