#include "cpu/packed_scaled_float.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "cpu/aligned_buffer.h"
#include "cpu/pack_runs.h"
#include "tensor/dequantize.h"

namespace headrace {
namespace {

// Two panels at a time are widened, a chunk of K after the other, and meet a block of rows.
constexpr int64_t kTaskPanels = 2;
constexpr int64_t kTaskColumns = kTaskPanels * kPanel;
constexpr int64_t kBlockRows = 128;
constexpr int64_t kScaleBytes = sizeof(float);
constexpr int64_t kMostBlockBytes = 132;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

ScaledFloat format_of(DType dtype) {
  if (dtype == DType::kFP8_G32) return ScaledFloat::kFp8G32;
  return dtype == DType::kFP8_G128 ? ScaledFloat::kFp8G128 : ScaledFloat::kNf4G64;
}

class PackedScaledFloat final : public CpuPackedWeight {
 public:
  PackedScaledFloat(DType dtype, int64_t rows, int64_t cols, SharedBytes data)
      : dtype_(dtype),
        block_(dtype_info(dtype).block_size),
        block_bytes_(dtype_info(dtype).block_bytes),
        rows_(rows),
        cols_(cols),
        data_(std::move(data)) {}

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  uint64_t bytes() const override { return data_.size(); }
  std::span<const std::byte> packed() const override { return data_.span(); }
  ActivationType input_type() const override { return ActivationType::kFloat32; }

  void decode_row(int64_t row, float* out) const override {
    const uint8_t* record = this->record(row / kPanel, 0);
    const int64_t lane = row % kPanel;
    uint8_t block[kMostBlockBytes];
    for (int64_t k = 0; k < cols_; k += block_, record += kPanel * block_bytes_) {
      std::memcpy(block, record + lane * kScaleBytes, kScaleBytes);
      for (int64_t i = kScaleBytes; i < block_bytes_; ++i) block[i] = record[i * kPanel + lane];
      // A whole block of a block format: cannot fail.
      static_cast<void>(dequantize_row(dtype_, block, out + k, block_).ok());
    }
  }

  int64_t num_tasks(const LinearInput& input, int, const KernelTable& kernels) const override {
    return ceil_div(rows_, kTaskColumns) * ceil_div(input.num_tokens, block_rows(kernels));
  }

  TaskArea task_area(int64_t task, const LinearInput& input, int, const KernelTable& kernels) const override {
    const int64_t task_rows = block_rows(kernels), blocks = ceil_div(input.num_tokens, task_rows);
    const int64_t first_row = task % blocks * task_rows, first_column = task / blocks * kTaskColumns;
    return {first_row, std::min(task_rows, input.num_tokens - first_row), first_column,
            std::min(kTaskColumns, rows_ - first_column)};
  }

  void run_area(const TaskArea& area, int, const LinearInput& input, const LinearOutput& output, float* y,
                const KernelTable& kernels) const override {
    alignas(64) float widened[kTaskPanels * kSumChunk * kPanel];
    alignas(64) float totals[kBlockRows * kTaskColumns] = {};
    const bool one_row = input.num_tokens == 1;
    const int64_t tile_rows = kernels.float_tile_rows;
    const float* x = one_row ? input.x : input.x_tiles;
    const int64_t first = area.first_column / kPanel, end_row = area.first_row + area.num_rows;
    MatmulTile tile;
    tile.x_stride = tile_rows;
    tile.w = widened;
    tile.panel_stride = kSumChunk * kPanel;
    tile.k_stride = kPanel;
    tile.panels = static_cast<int32_t>(std::min(kTaskPanels, ceil_div(rows_, kPanel) - first));
    tile.out_stride = kTaskColumns;
    for (int64_t k = 0; one_row && k < cols_; k += kSumChunk) {
      kernels.multiply_scaled(format_of(dtype_), {record(first, k), panel_bytes(), tile.panels,
                                                  std::min<int64_t>(kSumChunk, cols_ - k) / block_, x + k, totals});
    }
    for (int64_t k = 0; !one_row && k < cols_; k += kSumChunk) {
      tile.depth = std::min<int64_t>(kSumChunk, cols_ - k);
      for (int64_t p = 0; p < tile.panels; ++p) {
        kernels.widen_scaled(format_of(dtype_), record(first + p, k), tile.depth / block_,
                             widened + p * kSumChunk * kPanel);
      }
      for (int64_t row = area.first_row; row < end_row; row += tile_rows) {
        tile.rows = static_cast<int32_t>(std::min(tile_rows, end_row - row));
        tile.x = x + row * cols_ + k * tile_rows;
        tile.out = totals + (row - area.first_row) * tile.out_stride;
        kernels.matmul_tile(PanelType::kF32, tile);
      }
    }
    const float* bias = output.bias == nullptr ? nullptr : output.bias + area.first_column;
    for (int64_t row = 0; row < area.num_rows; ++row, y += output.y_stride) {
      const float* sums = totals + row * kTaskColumns;
      for (int64_t n = 0; n < area.num_columns; ++n) {
        const float value = bias == nullptr ? sums[n] : sums[n] + bias[n];
        y[n] = output.accumulate ? y[n] + value : value;
      }
    }
  }

 private:
  static int64_t block_rows(const KernelTable& kernels) {
    return kBlockRows / kernels.float_tile_rows * kernels.float_tile_rows;
  }
  const uint8_t* record(int64_t panel, int64_t k) const {
    return data_.as<uint8_t>() + panel * panel_bytes() + k / block_ * kPanel * block_bytes_;
  }
  int64_t panel_bytes() const { return cols_ / block_ * kPanel * block_bytes_; }

  DType dtype_;
  int64_t block_, block_bytes_;
  int64_t rows_, cols_;
  SharedBytes data_;
};

}  // namespace

Result<std::unique_ptr<CpuPackedWeight>> pack_scaled_float(const WeightSource& source, ThreadPool& pool) {
  if (source.rows <= 0 || source.cols <= 0) {
    return invalid_argument(source.name, "shape [{}, {}] is empty", source.rows, source.cols);
  }
  if (source.column_order != nullptr) {
    return internal_error(source.name, "{} columns come in another order", dtype_name(source.dtype));
  }
  const auto file_row = row_bytes(source.dtype, static_cast<uint64_t>(source.cols));
  const auto panel_bytes = file_row ? checked_mul<uint64_t>(*file_row, kPanel) : std::nullopt;
  const uint64_t panels = (static_cast<uint64_t>(source.rows) + kPanel - 1) / kPanel;
  const auto total = panel_bytes ? checked_mul<uint64_t>(*panel_bytes, panels) : std::nullopt;
  if (!total || *total > PTRDIFF_MAX) {
    return invalid_argument(source.name, "shape [{}, {}] of {} is not possible", source.rows, source.cols,
                            dtype_name(source.dtype));
  }
  const auto weight = [&](SharedBytes bytes) {
    return std::unique_ptr<CpuPackedWeight>(
        std::make_unique<PackedScaledFloat>(source.dtype, source.rows, source.cols, std::move(bytes)));
  };
  if (!source.packed.empty()) {
    if (source.packed.size() == *total) return weight(source.packed);
    return malformed(source.name, "{} packed bytes are not the {} of its shape", source.packed.size(), *total);
  }
  HEADRACE_ASSIGN_OR_RETURN(AlignedBuffer data, AlignedBuffer::allocate(*total, source.name));
  const int64_t row_size = static_cast<int64_t>(*file_row), block_bytes = dtype_info(source.dtype).block_bytes;
  HEADRACE_RETURN_IF_ERROR(pack_runs(source, static_cast<int64_t>(panels), kPanel, *file_row, pool,
                                     [&](int64_t panel, const std::byte* rows, int64_t lanes, int) {
                                       uint8_t* const out =
                                           data.as<uint8_t>() + static_cast<uint64_t>(panel) * *panel_bytes;
                                       std::memset(out, 0, *panel_bytes);
                                       for (int64_t lane = 0; lane < lanes; ++lane) {
                                         for (int64_t at = 0; at < row_size; at += block_bytes) {
                                           const uint8_t* block =
                                               reinterpret_cast<const uint8_t*>(rows) + lane * row_size + at;
                                           uint8_t* record = out + at * kPanel;
                                           std::memcpy(record + lane * kScaleBytes, block, kScaleBytes);
                                           for (int64_t i = kScaleBytes; i < block_bytes; ++i)
                                             record[i * kPanel + lane] = block[i];
                                         }
                                       }
                                       return Status();
                                     }));
  return weight(std::move(data).share());
}

}  // namespace headrace
