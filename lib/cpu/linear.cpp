#include "cpu/linear.h"

#include <algorithm>

#include "cpu/elementwise.h"
#include "cpu/packed_float.h"

namespace headrace {
namespace {

const CpuPackedWeight& cpu_weight(const PackedWeight& weight) { return static_cast<const CpuPackedWeight&>(weight); }

}  // namespace

const ActivationRows* CpuLinear::quantized(ActivationType type, Rows& rows, ThreadPool& pool,
                                           const KernelTable& kernels) {
  const bool is_int8 = type == ActivationType::kInt8;
  ActivationRows& out = is_int8 ? int8_rows_ : int16_rows_;
  bool& ready = is_int8 ? rows.int8 : rows.int16;
  if (!ready) quantize_activations(rows.x, rows.num_tokens, rows.in_features, type, pool, kernels, out);
  ready = true;
  return &out;
}

LinearInput CpuLinear::input_of(const CpuPackedWeight& weight, Rows& rows, ThreadPool& pool,
                                const KernelTable& kernels) {
  LinearInput input{rows.x, nullptr, nullptr, rows.num_tokens, rows.in_features};
  if (const auto order = weight.column_order(); !order.empty()) {
    row_pointers_.clear();
    for (int64_t row = 0; row < rows.num_tokens; ++row) row_pointers_.push_back(rows.x + row * rows.in_features);
    input.q = &ordered_.quantize(row_pointers_.data(), rows.num_tokens, rows.in_features, order, weight.input_type(),
                                 pool, kernels);
    return input;
  }
  if (weight.input_type() != ActivationType::kFloat32) {
    input.q = quantized(weight.input_type(), rows, pool, kernels);
    return input;
  }
  if (rows.num_tokens > 1 && !rows.tiles) {
    const int64_t tile_rows = kernels.float_tile_rows;
    fill_float_tiles(rows.x, rows.num_tokens, rows.in_features, tile_rows, pool,
                     tiles_.reserve_floats(float_tile_floats(rows.num_tokens, rows.in_features, tile_rows)));
    rows.tiles = true;
  }
  input.x_tiles = tiles_.as<float>();
  return input;
}

void CpuLinear::run(const LinearParams& p, ThreadPool& pool, const KernelTable& kernels) {
  if (p.num_tokens == 0) return;
  Rows rows{p.x, p.num_tokens, p.in_features};
  ordered_.begin();
  products_.clear();
  for (const LinearOutput& output : p.outputs) {
    const CpuPackedWeight& weight = cpu_weight(*output.weight);
    products_.push_back({&weight, input_of(weight, rows, pool, kernels), output});
  }
  run_products(products_, pool, kernels);
}

// A task of the gate's product writes to `out`, the same of the other to a buffer that stays in the cache, and the
// first is multiplied by the second at once. Without this a prefill would send both products through memory.
void CpuLinear::run(const GatedLinearParams& p, ThreadPool& pool, const KernelTable& kernels) {
  if (p.num_tokens == 0) return;
  Rows rows{p.x, p.num_tokens, p.in_features};
  ordered_.begin();
  const int threads = pool.num_threads();
  const CpuPackedWeight &gate = cpu_weight(*p.gate), &up = cpu_weight(*p.up);
  const LinearInput gate_input = input_of(gate, rows, pool, kernels), up_input = input_of(up, rows, pool, kernels);
  const int64_t tasks = gate.num_tasks(gate_input, threads, kernels);
  bool alike = tasks == up.num_tasks(up_input, threads, kernels);
  int64_t most = 0;
  for (int64_t task = 0; alike && task < tasks; ++task) {
    const TaskArea area = gate.task_area(task, gate_input, threads, kernels);
    alike = area == up.task_area(task, up_input, threads, kernels);
    if (!area.empty()) most = std::max(most, area.num_rows * area.num_columns);
  }
  if (!alike) return run_in_two(p, pool, kernels);

  float* const buffers = up_.reserve_floats(most * threads);
  const LinearOutput gate_output{p.gate, p.gate_bias, p.out, gate.rows(), false};
  pool.run(tasks, [&](int64_t task, int thread) {
    const TaskArea area = gate.task_area(task, gate_input, threads, kernels);
    if (area.empty()) return;
    float* const y = area.in(gate_output);
    float* const buffer = buffers + thread * most;
    gate.run_area(area, thread, gate_input, gate_output, y, kernels);
    up.run_area(area, thread, up_input, {p.up, p.up_bias, nullptr, area.num_columns, false}, buffer, kernels);
    kernels.gated_activation({static_cast<int32_t>(p.activation), p.limit, area.num_rows, area.num_columns, y,
                              gate.rows(), buffer, area.num_columns, y, gate.rows()});
  });
}

void CpuLinear::run_in_two(const GatedLinearParams& p, ThreadPool& pool, const KernelTable& kernels) {
  const int64_t width = p.gate->rows(), elements = p.num_tokens * width;
  float* const up = up_.reserve_floats(elements);
  const LinearOutput outputs[] = {{p.gate, p.gate_bias, p.out, width, false}, {p.up, p.up_bias, up, width, false}};
  run({p.x, p.num_tokens, p.in_features, outputs}, pool, kernels);
  for_elements(pool, elements, [&](int64_t at, int64_t count) {
    activate(kernels, p.activation, p.limit, p.out + at, up + at, count, p.out + at);
  });
}

}  // namespace headrace
