// Block-format weights packed for the integer kernels.
#pragma once

#include <memory>

#include "cpu/packed_weight.h"

namespace headrace {

// Packs a weight of a block format, read strip by strip on the pool's threads. kUnsupported for formats without
// kernels; a failed read is handed on. choices: how its products are computed on this pool.
Result<std::unique_ptr<CpuPackedWeight>> pack_quantized(const WeightSource& source, const PackOptions& options,
                                                        const ChoicesByRows& choices, ThreadPool& pool);

}  // namespace headrace
