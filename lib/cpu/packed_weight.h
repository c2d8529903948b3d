// What the CPU backend's weights can do beyond PackedWeight: multiply rows of activations.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/activations.h"
#include "cpu/kernel_table.h"
#include "cpu/linear_choice.h"
#include "ops/backend.h"

namespace headrace {

// Names the order of every packed weight's bytes, as the packers of this folder make it on every instruction set. A change
// of any of them changes the number: kept files of packed weights name it.
inline constexpr std::string_view kPackedLayout = "cpu/2";

// The rows of one linear op, in the form its weights asked for.
struct LinearInput {
  const float* x = nullptr;           // [num_tokens, in_features], always there
  const float* x_tiles = nullptr;     // kFloat32: tiles of KernelTable::float_tile_rows rows, each [in_features][rows]
  const ActivationRows* q = nullptr;  // kInt8, kInt16: the same rows quantized
  int64_t num_tokens = 0;
  int64_t in_features = 0;
  const LinearChoice* choice = nullptr;  // null: the weight's own for this number of rows
};

// What one task of a product writes; empty for tasks without work.
struct TaskArea {
  int64_t first_row = 0, num_rows = 0;
  int64_t first_column = 0, num_columns = 0;

  bool empty() const { return num_rows <= 0 || num_columns <= 0; }
  bool operator==(const TaskArea&) const = default;
  float* in(const LinearOutput& output) const { return output.y + first_row * output.y_stride + first_column; }
};

// Immutable after packing. A product y = x W^T + bias, or y += ... (see LinearOutput), is cut into tasks that may run
// in any order and on any thread; a row of y depends on its row of x alone.
class CpuPackedWeight : public PackedWeight {
 public:
  // kFloat32: products read x and x_tiles; otherwise they read q, quantized with this type.
  virtual ActivationType input_type() const = 0;
  virtual int64_t num_tasks(const LinearInput& input, int num_threads, const KernelTable& kernels) const = 0;
  // Of the columns as products read them, for their inputs to follow; empty: in order.
  virtual std::span<const int32_t> column_order() const { return {}; }
  // task in [0, num_tasks) of the same arguments.
  virtual TaskArea task_area(int64_t task, const LinearInput& input, int num_threads,
                             const KernelTable& kernels) const = 0;
  // Writes a task's area, which is not empty and of which y is the first element; thread in [0, num_threads).
  virtual void run_area(const TaskArea& area, int thread, const LinearInput& input, const LinearOutput& output,
                        float* y, const KernelTable& kernels) const = 0;
  // What a table of choices may say about products with so many rows, besides the rule that holds without one. Empty:
  // there is nothing to choose.
  virtual std::vector<LinearChoice> choices(int64_t /*num_tokens*/, int /*num_threads*/) const { return {}; }
};

}  // namespace headrace
