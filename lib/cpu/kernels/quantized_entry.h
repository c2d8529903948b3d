// Entry points of the quantized kernels; contracts in quantized_kernels.h.
#pragma once

#include "cpu/kernels/isa.h"
#include "cpu/kernels/quantized_kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

int64_t quantized_scratch_bytes(int64_t num_rows);
void quantized_run_task(const QuantizedTask& task);
void quantized_quantize_row(const float* x, int64_t row, const QuantizedPlane& first, const QuantizedPlane& second,
                            int32_t* second_index, int32_t* amax);

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
