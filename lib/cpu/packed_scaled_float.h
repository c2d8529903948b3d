// Weights of FP8 and NF4 under scales, kept as they are and widened to float32 in the first-level cache.
#pragma once

#include <memory>

#include "cpu/packed_weight.h"

namespace headrace {

// Panels of sixteen output features, each a sequence of records along K: a record holds the same block of the panel's
// rows, first their scales, then the bytes of their codes interleaved [bytes][16]. Products see float inputs, and have
// the bits of products with the decoded weights. Read strip by strip on the pool's threads.
Result<std::unique_ptr<CpuPackedWeight>> pack_scaled_float(const WeightSource& source, ThreadPool& pool);

}  // namespace headrace
