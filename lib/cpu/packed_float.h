// Weights kept as floats: F32, F16 and BF16 at their own width, block formats decoded to F32 on request.
#pragma once

#include <memory>

#include "cpu/packed_weight.h"

namespace headrace {

// Panels of sixteen output features [cols][16], so that a register's lanes are outputs and no sum crosses lanes. Read
// strip by strip on the pool's threads. kUnsupported for plain types other than F32, F16 and BF16.
Result<std::unique_ptr<CpuPackedWeight>> pack_float(const WeightSource& source, ThreadPool& pool);

// Floats that x_tiles of LinearInput takes, and the tiles themselves: tile i holds rows i * tile_rows ..., lanes past
// the last row are left alone.
int64_t float_tile_floats(int64_t num_tokens, int64_t in_features, int64_t tile_rows);
void fill_float_tiles(const float* x, int64_t num_tokens, int64_t in_features, int64_t tile_rows, ThreadPool& pool,
                      float* tiles);

}  // namespace headrace
