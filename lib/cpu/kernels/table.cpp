// This instruction set's kernel table.
#include "cpu/kernels/isa.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/quantized_entry.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

using namespace HEADRACE_FLOAT_NAMESPACE;

extern const KernelTable kKernelTable;
// Constant-initialised: usable before and after any static constructor of the host.
const KernelTable kKernelTable = {
    HEADRACE_ISA_NAME,
    kTileRows,
    widest_panels(1),
    matmul_tile,
    widen,
    widen_scaled,
    multiply_scaled,
    rms_norm_row,
    layer_norm_row,
    gated_activation,
    add,
    scale,
    softcap,
    logit_sum,
    rotate_head,
    store_kv,
    attention_scratch_floats,
    attention_split,
    attention_merge,
    attention_finish,
    index_scores,
    causal_conv,
    pool_runs,
    selective_scan,
    linear_recurrence,
    decay_gates,
    {kQuantizedTileRows, kQuantizedFewRows, quantized_scratch_bytes, quantized_run_task, quantized_quantize_tile},
};

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
