// What the CPU backend's weights can do beyond PackedWeight: multiply rows of activations.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "cpu/activations.h"
#include "cpu/kernel_table.h"
#include "ops/backend.h"

namespace headrace {

// The rows of one linear op, in the form its weights asked for.
struct LinearInput {
  const float* x = nullptr;           // [num_tokens, in_features], always there
  const float* x_tiles = nullptr;     // kFloat32: tiles of KernelTable::float_tile_rows rows, each [in_features][rows]
  const ActivationRows* q = nullptr;  // kInt8, kInt16: the same rows quantized
  int64_t num_tokens = 0;
  int64_t in_features = 0;
};

// Immutable after packing. multiply runs its own loops on the pool; one op at a time per pool.
class CpuPackedWeight : public PackedWeight {
 public:
  // kFloat32: multiply reads x and x_tiles; otherwise it reads q, quantized with this type.
  virtual ActivationType input_type() const = 0;
  // y = x W^T + bias, or y += ... (see LinearOutput). A row of y depends on its row of x alone.
  virtual void multiply(const LinearInput& input, const LinearOutput& output, ThreadPool& pool,
                        const KernelTable& kernels) const = 0;
};

}  // namespace headrace
