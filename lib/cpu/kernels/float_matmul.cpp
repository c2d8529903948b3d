// Register tiles of the products with float weights: a few rows of x times a few panels of sixteen outputs.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

template <PanelType kType>
HEADRACE_INLINE V16 load_panel(const void* w, int64_t element) {
  if constexpr (kType == PanelType::kF32) return load(static_cast<const float*>(w) + element);
  if constexpr (kType == PanelType::kF16) return load_f16(static_cast<const uint16_t*>(w) + element);
  if constexpr (kType == PanelType::kBF16) return load_bf16(static_cast<const uint16_t*>(w) + element);
}

template <PanelType kType, int kRows, int kPanels>
void multiply(const MatmulTile& t, int first_panel) {
  const int64_t first = first_panel * t.panel_stride;
  float* out = t.out + first_panel * kPanel;
  for (int64_t begin = 0; begin < t.depth; begin += kSumChunk) {
    const int64_t end = begin + kSumChunk < t.depth ? begin + kSumChunk : t.depth;
    V16 sums[kRows][kPanels];
    HEADRACE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) sums[r][g] = zero();
    }
    const float* x = t.x + begin * t.x_stride;
    int64_t element = first + begin * t.k_stride;
    for (int64_t k = begin; k < end; ++k) {
      V16 w[kPanels];
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) w[g] = load_panel<kType>(t.w, element + g * t.panel_stride);
      HEADRACE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const V16 value = set1(x[r]);
        HEADRACE_UNROLL
        for (int g = 0; g < kPanels; ++g) sums[r][g] = fma(value, w[g], sums[r][g]);
      }
      x += t.x_stride;
      element += t.k_stride;
    }
    HEADRACE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HEADRACE_UNROLL
      for (int g = 0; g < kPanels; ++g) {
        float* total = out + r * t.out_stride + g * kPanel;
        store(total, add(load(total), sums[r][g]));
      }
    }
  }
}

template <PanelType kType, int kRows>
void multiply_rows(const MatmulTile& t) {
  int panel = 0;
  constexpr int kWidest = widest_panels(kRows);
  if constexpr (kWidest >= 8) {
    for (; panel + 8 <= t.panels; panel += 8) multiply<kType, kRows, 8>(t, panel);
  }
  if constexpr (kWidest >= 4) {
    for (; panel + 4 <= t.panels; panel += 4) multiply<kType, kRows, 4>(t, panel);
  }
  if constexpr (kWidest >= 2) {
    for (; panel + 2 <= t.panels; panel += 2) multiply<kType, kRows, 2>(t, panel);
  }
  for (; panel < t.panels; ++panel) multiply<kType, kRows, 1>(t, panel);
}

template <PanelType kType, int kRows>
void dispatch_rows(const MatmulTile& t) {
  if (t.rows == kRows) {
    multiply_rows<kType, kRows>(t);
  } else if constexpr (kRows > 1) {
    dispatch_rows<kType, kRows - 1>(t);
  }
}

template <PanelType kType>
void widen_all(const void* src, float* dst, int64_t count) {
  int64_t i = 0;
  for (; i + kPanel <= count; i += kPanel) store(dst + i, load_panel<kType>(src, i));
  if (i == count) return;
  if constexpr (kType == PanelType::kF32) {
    store_partial(dst + i, load_partial(static_cast<const float*>(src) + i, count - i), count - i);
  } else {
    uint16_t lanes[kPanel] = {};
    memcpy(lanes, static_cast<const uint16_t*>(src) + i, static_cast<size_t>(count - i) * 2);
    store_partial(dst + i, load_panel<kType>(lanes, 0), count - i);
  }
}

}  // namespace

void matmul_tile(PanelType type, const MatmulTile& tile) {
  switch (type) {
    case PanelType::kF32: return dispatch_rows<PanelType::kF32, kTileRows>(tile);
    case PanelType::kF16: return dispatch_rows<PanelType::kF16, kTileRows>(tile);
    case PanelType::kBF16: return dispatch_rows<PanelType::kBF16, kTileRows>(tile);
  }
}

void widen(PanelType type, const void* src, float* dst, int64_t count) {
  switch (type) {
    case PanelType::kF32: return widen_all<PanelType::kF32>(src, dst, count);
    case PanelType::kF16: return widen_all<PanelType::kF16>(src, dst, count);
    case PanelType::kBF16: return widen_all<PanelType::kBF16>(src, dst, count);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
