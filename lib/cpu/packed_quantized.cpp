#include "cpu/packed_quantized.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/checked.h"
#include "base/cpu_identity.h"
#include "cpu/aligned_buffer.h"
#include "cpu/pack_runs.h"
#include "cpu/packed_quantized_layout.h"
#include "tensor/column_order.h"
#include "tensor/dequantize.h"

namespace headrace {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Intel's cores have few lines at once under way into their first level, many more into the second: 5 to 15 % of a token's
// time on Emerald Rapids. AMD's Zen 5 reads at 87 % of memory's rate without.
bool fetches_in_steps() {
  static const bool kIntel = cpu_identity().vendor == "GenuineIntel";
  return kIntel;
}

class PackedQuantized final : public CpuPackedWeight {
 public:
  PackedQuantized(DType dtype, ActivationType input, const QuantizedLayout& layout, int64_t rows, int64_t cols,
                  const ChoicesByRows& choices, ColumnOrder order, SharedBytes data)
      : dtype_(dtype),
        input_(input),
        layout_(layout),
        rows_(rows),
        cols_(cols),
        choices_(choices),
        order_(std::move(order)),
        data_(std::move(data)) {
    pair_bytes_ = cols / (layout.record_blocks * kQuantBlock) * kTaskStrips * layout.record_bytes;
  }

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  uint64_t bytes() const override { return data_.size(); }
  std::span<const std::byte> packed() const override { return data_.span(); }
  ActivationType input_type() const override { return input_; }

  std::span<const int32_t> column_order() const override {
    return order_ == nullptr ? std::span<const int32_t>() : *order_;
  }

  void decode_row(int64_t row, float* out) const override {
    if (order_ == nullptr) return decode_stored(row, out);
    std::vector<float> stored(static_cast<size_t>(cols_));
    decode_stored(row, stored.data());
    put_in_order(*order_, stored.data(), out);
  }

  int64_t num_tasks(const LinearInput& input, int num_threads, const KernelTable& kernels) const override {
    return plan(input, num_threads, kernels).tasks;
  }

  TaskArea task_area(int64_t task, const LinearInput& input, int num_threads,
                     const KernelTable& kernels) const override {
    const Plan p = plan(input, num_threads, kernels);
    const int64_t group = task % p.row_tasks / p.cuts;
    const int64_t first_row = group * kOutlierGroupRows + task % p.cuts * p.task_rows;
    const int64_t end_row = std::min((group + 1) * kOutlierGroupRows, input.num_tokens);
    const int64_t first_column = task / p.row_tasks * p.run_pairs * kTaskColumns;
    return {first_row, std::min(p.task_rows, end_row - first_row), first_column,
            std::min(p.run_pairs * kTaskColumns, rows_ - first_column)};
  }

  void run_area(const TaskArea& area, int thread, const LinearInput& input, const LinearOutput& output, float* y,
                const KernelTable& kernels) const override {
    const Unpack unpack = choice_of(input).unpack;
    for (int64_t column = 0; column < area.num_columns; column += kTaskColumns) {
      multiply((area.first_column + column) / kTaskColumns, column == 0, area, unpack, *input.q, output, y + column,
               thread, kernels);
    }
  }

  std::vector<LinearChoice> choices(int64_t num_tokens, int num_threads) const override {
    std::vector<LinearChoice> all;
    for (const Unpack unpack : {Unpack::kRegisters, Unpack::kMemory}) {
      if (unpack == Unpack::kRegisters && !unpacks_in_registers(layout_.format)) continue;
      // Far from where the two meet there is nothing to find.
      if (unpack == Unpack::kRegisters ? num_tokens > kMostInRegisters : num_tokens < kFewestInMemory) continue;
      for (int32_t run_pairs = 1; run_pairs <= LinearChoice::kMostRunPairs; run_pairs *= 2) {
        if (run_pairs > 1 && run_pairs * num_threads > num_pairs()) break;
        if (num_tokens > kMostLongRunRows && run_pairs > 2) break;
        for (const int32_t task_rows : {48, 96, 132, 264, static_cast<int32_t>(kOutlierGroupRows)}) {
          // Of those that do not cut the rows one is enough.
          if (task_rows != kOutlierGroupRows && task_rows >= num_tokens) continue;
          all.push_back({unpack, run_pairs, task_rows});
        }
      }
    }
    return all;
  }

 private:
  void decode_stored(int64_t row, float* out) const {
    const int64_t block_values = layout_.record_blocks * kQuantBlock;
    const uint8_t* record =
        data_.as<uint8_t>() + row / kTaskColumns * pair_bytes_ + row % kTaskColumns / kStripRows * layout_.record_bytes;
    uint8_t block[kMostBlockBytes];
    for (int64_t k = 0; k < cols_; k += block_values, record += kTaskStrips * layout_.record_bytes) {
      extract_block(layout_, record, static_cast<int>(row % kStripRows), block);
      // A whole block of a block format: cannot fail.
      static_cast<void>(dequantize_row(dtype_, block, out + k, block_values).ok());
    }
  }

  // A task is a run of pairs of strips times one cut of an outlier group's rows.
  struct Plan {
    int64_t run_pairs, task_rows, cuts, row_tasks, tasks;
  };

  int64_t num_pairs() const { return ceil_div(rows_, kTaskColumns); }

  const LinearChoice& choice_of(const LinearInput& input) const {
    return input.choice ? *input.choice : choices_[row_bucket(input.num_tokens)];
  }

  Plan plan(const LinearInput& input, int num_threads, const KernelTable& kernels) const {
    const LinearChoice& choice = choice_of(input);
    if (choice.is_rule()) return plan_by_rule(input, num_threads, kernels);
    // A task begins where a tile does, and few rows have tiles of their own size.
    const int64_t tile_rows = input.q->first.tile_rows;
    const int64_t task_rows = std::min(ceil_div(choice.task_rows, tile_rows) * tile_rows, input.q->workspace_rows);
    const int64_t cuts = ceil_div(input.q->workspace_rows, task_rows);
    const int64_t row_tasks = ceil_div(input.num_tokens, kOutlierGroupRows) * cuts;
    return {choice.run_pairs, task_rows, cuts, row_tasks, ceil_div(num_pairs(), choice.run_pairs) * row_tasks};
  }

  Plan plan_by_rule(const LinearInput& input, int num_threads, const KernelTable& kernels) const {
    const int64_t pairs = num_pairs();
    if (input.num_tokens <= kernels.quantized.few_rows) {
      // Few rows read the weights at the speed of memory, which likes long runs.
      const int64_t run_pairs = std::clamp<int64_t>(pairs / (4 * num_threads), 1, LinearChoice::kMostRunPairs);
      return {run_pairs, input.num_tokens, 1, 1, ceil_div(pairs, run_pairs)};
    }
    // Rows are cut only as far as it takes to give every thread a few tasks: each cut unpacks the weights again.
    int64_t task_rows = input.q->workspace_rows;
    while (task_rows > kFewestTaskRows && pairs * ceil_div(input.num_tokens, task_rows) < 4 * num_threads) {
      task_rows = ceil_div(task_rows / 2, LinearChoice::kRowStep) * LinearChoice::kRowStep;
    }
    const int64_t cuts = ceil_div(input.q->workspace_rows, task_rows);
    const int64_t row_tasks = ceil_div(input.num_tokens, kOutlierGroupRows) * cuts;
    return {1, task_rows, cuts, row_tasks, pairs * row_tasks};
  }

  void multiply(int64_t pair, bool starts, const TaskArea& area, Unpack unpack, const ActivationRows& q,
                const LinearOutput& output, float* y, int thread, const KernelTable& kernels) const {
    const int64_t column = pair * kTaskColumns;
    QuantizedTask task;
    task.layout = &layout_;
    task.pair = data_.as<uint8_t>() + pair * pair_bytes_;
    task.blocks = cols_ / kQuantBlock;
    task.first = q.first;
    task.second = q.second;
    task.outliers = q.outliers;
    task.first_row = area.first_row;
    task.num_rows = area.num_rows;
    task.bias = output.bias ? output.bias + column : nullptr;
    task.y = y;
    task.y_stride = output.y_stride;
    task.num_columns = static_cast<int32_t>(std::min<int64_t>(kTaskColumns, rows_ - column));
    task.accumulate = output.accumulate;
    task.starts = starts;
    task.fetch_in_steps = fetches_in_steps();
    task.unpack = unpack;
    task.scratch = q.scratch + static_cast<uint64_t>(thread) * q.workspace_bytes;
    kernels.quantized.run_task(task);
  }

  static constexpr int64_t kMostBlockBytes = 320;  // Q8_K has 292
  static constexpr int64_t kFewestTaskRows = 48;
  // Of the choices worth measuring.
  static constexpr int64_t kMostInRegisters = 128, kFewestInMemory = 8;
  static constexpr int64_t kMostLongRunRows = 128;

  DType dtype_;
  ActivationType input_;
  const QuantizedLayout& layout_;
  int64_t rows_, cols_, pair_bytes_;
  ChoicesByRows choices_;
  ColumnOrder order_;
  SharedBytes data_;
};

}  // namespace

Result<std::unique_ptr<CpuPackedWeight>> pack_quantized(const WeightSource& source, const PackOptions& options,
                                                        const ChoicesByRows& choices, ThreadPool& pool) {
  const QuantizedLayout* layout = quantized_layout(source.dtype);
  if (!layout) return unsupported(source.name, "no kernels for {} weights", dtype_name(source.dtype));
  if (options.activations != ActivationType::kInt8 && options.activations != ActivationType::kInt16) {
    return invalid_argument(source.name, "{} weights meet int8 or int16 activations", dtype_name(source.dtype));
  }
  if (source.rows <= 0 || source.cols <= 0) {
    return invalid_argument(source.name, "shape [{}, {}] is empty", source.rows, source.cols);
  }
  const auto file_row = row_bytes(source.dtype, static_cast<uint64_t>(source.cols));
  if (!file_row) {
    return invalid_argument(source.name, "{} columns are no whole number of {} blocks of {}", source.cols,
                            dtype_name(source.dtype), dtype_info(source.dtype).block_size);
  }
  const uint64_t pairs = (static_cast<uint64_t>(source.rows) + kTaskColumns - 1) / kTaskColumns;
  const auto strip_bytes = checked_mul<uint64_t>(*file_row, kStripRows);
  const auto total = strip_bytes ? checked_mul<uint64_t>(*strip_bytes, kTaskStrips * pairs) : std::nullopt;
  if (!total || *total > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return invalid_argument(source.name, "shape [{}, {}] of {} does not fit into memory", source.rows, source.cols,
                            dtype_name(source.dtype));
  }
  const auto weight = [&](SharedBytes bytes) {
    return std::unique_ptr<CpuPackedWeight>(
        std::make_unique<PackedQuantized>(source.dtype, options.activations, *layout, source.rows, source.cols, choices,
                                          source.column_order, std::move(bytes)));
  };
  if (!source.packed.empty()) {
    if (source.packed.size() == *total) return weight(source.packed);
    return malformed(source.name, "{} packed bytes are not the {} of its shape", source.packed.size(), *total);
  }
  HEADRACE_ASSIGN_OR_RETURN(AlignedBuffer data, AlignedBuffer::allocate(*total, source.name));
  const int64_t records = static_cast<int64_t>(*strip_bytes) / layout->record_bytes;
  HEADRACE_RETURN_IF_ERROR(pack_runs(
      source, static_cast<int64_t>(kTaskStrips * pairs), kStripRows, *file_row, pool,
      [&](int64_t strip, const std::byte* rows, int64_t count, int) {
        uint8_t* pair = data.as<uint8_t>() + static_cast<uint64_t>(strip / kTaskStrips) * kTaskStrips * *strip_bytes;
        for (int64_t record = 0; record < records; ++record) {
          pack_record(*layout, reinterpret_cast<const uint8_t*>(rows) + record * layout->file_block_bytes,
                      static_cast<int64_t>(*file_row), count,
                      pair + (record * kTaskStrips + strip % kTaskStrips) * layout->record_bytes);
        }
        return Status();
      }));
  return weight(std::move(data).share());
}

}  // namespace headrace
