// The ops of recurrent layers on the CPU: cuts them into tasks of one sequence and some channels or columns.
#pragma once

#include "base/thread_pool.h"
#include "cpu/kernel_table.h"
#include "tensor/recurrent_params.h"

namespace headrace {

void run_causal_conv(const CausalConvParams& params, ThreadPool& pool, const KernelTable& kernels);
void run_pool_runs(const PoolRunsParams& params, ThreadPool& pool, const KernelTable& kernels);
void run_selective_scan(const SelectiveScanParams& params, ThreadPool& pool, const KernelTable& kernels);
void run_linear_recurrence(const LinearRecurrenceParams& params, ThreadPool& pool, const KernelTable& kernels);
void run_decay_gates(const DecayGatesParams& params, ThreadPool& pool, const KernelTable& kernels);
void run_group_norm(const GroupNormParams& params, ThreadPool& pool, const KernelTable& kernels);

}  // namespace headrace
