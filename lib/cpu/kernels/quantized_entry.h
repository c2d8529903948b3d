// Entry points of the quantized kernels; contracts in quantized_kernels.h.
#pragma once

#include "cpu/kernels/isa.h"
#include "cpu/kernels/quantized_kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// Rows of a tile, sized for the register file. Without sums of pairs, two vectors of weights share each row's loads.
constexpr int kQuantizedTileRows = kVectorRegisters == 32 ? 6 : kExactDot ? 3 : 4;

// Rows up to which codes are unpacked in registers, again for each tile; beyond, unpacking to memory once pays.
constexpr int kQuantizedFewRows = 8 * kQuantizedTileRows;

int64_t quantized_scratch_bytes(int64_t num_rows);
void quantized_run_task(const QuantizedTask& task);
void quantized_quantize_tile(const float* x, int64_t first_row, int32_t num_rows, const QuantizedPlane& first,
                             const QuantizedPlane& second, int64_t per_row, uint8_t* records, int32_t* index,
                             float* scratch);

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
