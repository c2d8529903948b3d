// This instruction set's kernel table.
#include "cpu/kernels/isa.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/quantized_entry.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

extern const KernelTable kKernelTable;
// Constant-initialised: usable before and after any static constructor of the host.
const KernelTable kKernelTable = {
#if HEADRACE_ISA_LEVEL == 2
    "avx512_vnni",
    kTileRows,
    8,
#elif HEADRACE_ISA_LEVEL == 1
    "avx2",
    kTileRows,
    4,
#else
    "baseline",
    kTileRows,
    2,
#endif
    matmul_tile,
    widen,
    rms_norm_row,
    layer_norm_row,
    gated_activation,
    clamped_swish,
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
    causal_conv,
    selective_scan,
    linear_recurrence,
    decay_gates,
    {kQuantizedTileRows, kQuantizedFewRows, quantized_scratch_bytes, quantized_run_task, quantized_quantize_tile},
};

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
