#include "cpu/packed_float.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/checked.h"
#include "cpu/aligned_buffer.h"
#include "cpu/pack_runs.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace headrace {
namespace {

// Panels of one task. With one tile of rows the weights stream from memory once; with more, two panels at a time are
// widened into the first-level cache and meet a block of rows.
constexpr int64_t kTaskPanels = 8;
constexpr int64_t kPairPanels = 2;
constexpr int64_t kBlockRows = 128;
static_assert(kBlockRows >= kMostTileRows);

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

class PackedFloat final : public CpuPackedWeight {
 public:
  PackedFloat(DType dtype, PanelType panels, int64_t rows, int64_t cols, SharedBytes data)
      : dtype_(dtype), type_(panels), rows_(rows), cols_(cols), data_(std::move(data)) {}

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  uint64_t bytes() const override { return data_.size(); }
  std::span<const std::byte> packed() const override { return data_.span(); }
  ActivationType input_type() const override { return ActivationType::kFloat32; }

  void decode_row(int64_t row, float* out) const override {
    const int64_t first = row / kPanel * cols_ * kPanel + row % kPanel;
    switch (type_) {
      case PanelType::kF32:
        for (int64_t k = 0; k < cols_; ++k) out[k] = data_.as<float>()[first + k * kPanel];
        return;
      case PanelType::kF16:
        for (int64_t k = 0; k < cols_; ++k) out[k] = half_to_float(data_.as<uint16_t>()[first + k * kPanel]);
        return;
      case PanelType::kBF16:
        for (int64_t k = 0; k < cols_; ++k) out[k] = bfloat16_to_float(data_.as<uint16_t>()[first + k * kPanel]);
        return;
    }
  }

  int64_t num_tasks(const LinearInput& input, int, const KernelTable& kernels) const override {
    if (input.num_tokens <= kernels.float_tile_rows) return ceil_div(num_panels(), kTaskPanels);
    return ceil_div(num_panels(), kPairPanels) * num_blocks(input, kernels);
  }

  TaskArea task_area(int64_t task, const LinearInput& input, int, const KernelTable& kernels) const override {
    const bool one_tile = input.num_tokens <= kernels.float_tile_rows;
    const int64_t blocks = one_tile ? 1 : num_blocks(input, kernels);
    const int64_t task_rows = one_tile ? input.num_tokens : block_rows(kernels);
    const int64_t task_columns = (one_tile ? kTaskPanels : kPairPanels) * kPanel;
    const int64_t first_row = task % blocks * task_rows, first_column = task / blocks * task_columns;
    return {first_row, std::min(task_rows, input.num_tokens - first_row), first_column,
            std::min(task_columns, rows_ - first_column)};
  }

  void run_area(const TaskArea& area, int, const LinearInput& input, const LinearOutput& output, float* y,
                const KernelTable& kernels) const override {
    if (input.num_tokens <= kernels.float_tile_rows) {
      multiply_one_tile(area, input, output, y, kernels);
    } else {
      multiply_block(area, input, output, y, kernels);
    }
  }

 private:
  int64_t element_bytes() const { return type_ == PanelType::kF32 ? 4 : 2; }
  int64_t num_panels() const { return ceil_div(rows_, kPanel); }
  const std::byte* panel(int64_t index) const { return data_.data() + index * cols_ * kPanel * element_bytes(); }

  static int64_t block_rows(const KernelTable& kernels) {
    return kBlockRows / kernels.float_tile_rows * kernels.float_tile_rows;
  }
  static int64_t num_blocks(const LinearInput& input, const KernelTable& kernels) {
    return ceil_div(input.num_tokens, block_rows(kernels));
  }

  void multiply_one_tile(const TaskArea& area, const LinearInput& input, const LinearOutput& output, float* y,
                         const KernelTable& kernels) const {
    alignas(64) float totals[kMostTileRows * kTaskPanels * kPanel] = {};
    const int64_t first = area.first_column / kPanel;
    MatmulTile tile;
    tile.x = input.num_tokens == 1 ? input.x : input.x_tiles;
    tile.x_stride = input.num_tokens == 1 ? 1 : kernels.float_tile_rows;
    tile.w = panel(first);
    tile.panel_stride = cols_ * kPanel;
    tile.k_stride = kPanel;
    tile.depth = cols_;
    tile.rows = static_cast<int32_t>(input.num_tokens);
    tile.panels = static_cast<int32_t>(std::min(kTaskPanels, num_panels() - first));
    tile.out = totals;
    tile.out_stride = kTaskPanels * kPanel;
    kernels.matmul_tile(type_, tile);
    write(totals, tile.out_stride, area, output, y);
  }

  // Neighbouring tasks share their weights, so that the second finds them in the last-level cache.
  void multiply_block(const TaskArea& area, const LinearInput& input, const LinearOutput& output, float* y,
                      const KernelTable& kernels) const {
    alignas(64) float widened[kPairPanels * kSumChunk * kPanel];
    alignas(64) float totals[kBlockRows * kPairPanels * kPanel] = {};
    const int64_t tile_rows = kernels.float_tile_rows;
    const int64_t first = area.first_column / kPanel;
    const int64_t panels = std::min(kPairPanels, num_panels() - first);
    const int64_t first_row = area.first_row, end_row = first_row + area.num_rows;
    MatmulTile tile;
    tile.x_stride = tile_rows;
    tile.k_stride = kPanel;
    tile.panels = static_cast<int32_t>(panels);
    tile.out_stride = kPairPanels * kPanel;
    for (int64_t k = 0; k < cols_; k += kSumChunk) {
      tile.depth = std::min<int64_t>(kSumChunk, cols_ - k);
      if (type_ == PanelType::kF32) {
        tile.w = panel(first) + k * kPanel * 4;
        tile.panel_stride = cols_ * kPanel;
      } else {
        for (int64_t p = 0; p < panels; ++p) {
          kernels.widen(type_, panel(first + p) + k * kPanel * 2, widened + p * kSumChunk * kPanel,
                        tile.depth * kPanel);
        }
        tile.w = widened;
        tile.panel_stride = kSumChunk * kPanel;
      }
      for (int64_t row = first_row; row < end_row; row += tile_rows) {
        tile.rows = static_cast<int32_t>(std::min(tile_rows, end_row - row));
        tile.x = input.x_tiles + row * cols_ + k * tile_rows;
        tile.out = totals + (row - first_row) * tile.out_stride;
        kernels.matmul_tile(PanelType::kF32, tile);
      }
    }
    write(totals, tile.out_stride, area, output, y);
  }

  void write(const float* totals, int64_t stride, const TaskArea& area, const LinearOutput& output, float* y) const {
    const float* bias = output.bias == nullptr ? nullptr : output.bias + area.first_column;
    for (int64_t row = 0; row < area.num_rows; ++row, totals += stride, y += output.y_stride) {
      for (int64_t n = 0; n < area.num_columns; ++n) {
        const float value = bias == nullptr ? totals[n] : totals[n] + bias[n];
        y[n] = output.accumulate ? y[n] + value : value;
      }
    }
  }

  DType dtype_;
  PanelType type_;
  int64_t rows_, cols_;
  SharedBytes data_;
};

// dst [cols][16] from `lanes` rows of src [lanes][cols]; missing rows become zeros.
template <class Element>
void interleave(const Element* src, int64_t lanes, int64_t cols, Element* dst) {
  constexpr int64_t kBlock = 64;  // of dst stays in the first-level cache while each row passes
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, cols);
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      for (int64_t k = begin; k < end; ++k) dst[k * kPanel + lane] = lane < lanes ? src[lane * cols + k] : Element{};
    }
  }
}

}  // namespace

Result<std::unique_ptr<CpuPackedWeight>> pack_float(const WeightSource& source, ThreadPool& pool) {
  PanelType type = PanelType::kF32;
  bool decode = false;
  switch (source.dtype) {
    case DType::kF32: break;
    case DType::kF16: type = PanelType::kF16; break;
    case DType::kBF16: type = PanelType::kBF16; break;
    default:
      if (!is_block_format(source.dtype)) {
        return unsupported(source.name, "{} is no weight type", dtype_name(source.dtype));
      }
      decode = true;
  }
  if (source.column_order != nullptr && !decode) {
    return internal_error(source.name, "{} columns come in another order", dtype_name(source.dtype));
  }
  if (source.rows <= 0 || source.cols <= 0) {
    return invalid_argument(source.name, "shape [{}, {}] is empty", source.rows, source.cols);
  }
  const auto file_row = row_bytes(source.dtype, static_cast<uint64_t>(source.cols));
  const uint64_t element = type == PanelType::kF32 ? 4 : 2;
  const auto panel_bytes = checked_mul<uint64_t>(static_cast<uint64_t>(source.cols), kPanel * element);
  const uint64_t panels = (static_cast<uint64_t>(source.rows) + kPanel - 1) / kPanel;
  const auto total = panel_bytes ? checked_mul<uint64_t>(*panel_bytes, panels) : std::nullopt;
  if (!file_row || !total || !checked_mul<uint64_t>(*file_row, static_cast<uint64_t>(source.rows)) ||
      *total > PTRDIFF_MAX) {
    return invalid_argument(source.name, "shape [{}, {}] of {} is not possible", source.rows, source.cols,
                            dtype_name(source.dtype));
  }
  const auto weight = [&](SharedBytes bytes) {
    return std::unique_ptr<CpuPackedWeight>(
        std::make_unique<PackedFloat>(source.dtype, type, source.rows, source.cols, std::move(bytes)));
  };
  if (!source.packed.empty()) {
    if (source.packed.size() == *total) return weight(source.packed);
    return malformed(source.name, "{} packed bytes are not the {} of its shape", source.packed.size(), *total);
  }
  HEADRACE_ASSIGN_OR_RETURN(AlignedBuffer data, AlignedBuffer::allocate(*total, source.name));
  std::vector<std::vector<float>> decoded, stored;  // of each thread
  if (decode) {
    const auto threads = static_cast<size_t>(pool.num_threads()), cols = static_cast<size_t>(source.cols);
    try {
      decoded.assign(threads, std::vector<float>(cols * kPanel));
      if (source.column_order != nullptr) stored.assign(threads, std::vector<float>(cols));
    } catch (const std::bad_alloc&) {
      return out_of_memory(source.name, "strips of {} rows could not be allocated", kPanel);
    }
  }
  const auto pack = [&](int64_t panel, const std::byte* rows, int64_t lanes, int thread) -> Status {
    std::byte* out = data.data() + static_cast<uint64_t>(panel) * *panel_bytes;
    if (!decode && element == 4) {
      interleave(reinterpret_cast<const float*>(rows), lanes, source.cols, reinterpret_cast<float*>(out));
    } else if (!decode) {
      interleave(reinterpret_cast<const uint16_t*>(rows), lanes, source.cols, reinterpret_cast<uint16_t*>(out));
    } else {
      float* const values = decoded[static_cast<size_t>(thread)].data();
      HEADRACE_RETURN_IF_ERROR(dequantize_row(source.dtype, rows, values, lanes * source.cols));
      for (int64_t lane = 0; lane < lanes && source.column_order != nullptr; ++lane) {
        std::vector<float>& row = stored[static_cast<size_t>(thread)];
        std::copy_n(values + lane * source.cols, row.size(), row.begin());
        put_in_order(*source.column_order, row.data(), values + lane * source.cols);
      }
      interleave(values, lanes, source.cols, reinterpret_cast<float*>(out));
    }
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(pack_runs(source, static_cast<int64_t>(panels), kPanel, *file_row, pool, pack));
  return weight(std::move(data).share());
}

int64_t float_tile_floats(int64_t num_tokens, int64_t in_features, int64_t tile_rows) {
  return ceil_div(num_tokens, tile_rows) * tile_rows * in_features;
}

void fill_float_tiles(const float* x, int64_t num_tokens, int64_t in_features, int64_t tile_rows, ThreadPool& pool,
                      float* tiles) {
  constexpr int64_t kDepth = 1024;
  const int64_t pieces = ceil_div(in_features, kDepth);
  pool.run(ceil_div(num_tokens, tile_rows) * pieces, [&](int64_t task, int) {
    const int64_t row = task / pieces * tile_rows;
    const int64_t rows = std::min(tile_rows, num_tokens - row);
    const int64_t begin = task % pieces * kDepth, end = std::min(begin + kDepth, in_features);
    const float* src = x + row * in_features;
    float* dst = tiles + row * in_features;
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t r = 0; r < rows; ++r) dst[k * tile_rows + r] = src[r * in_features + k];
    }
  });
}

}  // namespace headrace
