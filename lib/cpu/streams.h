// The ops of tensor/stream_params.h over the thread pool. They are a small share of a layer, and have one arithmetic on
// every instruction set: sums of a row are float64 in the order of its values.
#pragma once

#include "base/thread_pool.h"
#include "tensor/op_params.h"
#include "tensor/stream_params.h"

namespace headrace {

void run_mix_streams(const MixStreamsParams& params, ThreadPool& pool);
void run_stream_gates(const StreamGatesParams& params, ThreadPool& pool);
void run_match_magnitude(const MatchMagnitudeParams& params, ThreadPool& pool);
void run_cut_gates(const CutGatesParams& params, ThreadPool& pool);
// ScaleParams with columns.
void run_scale_columns(const ScaleParams& params, ThreadPool& pool);

}  // namespace headrace
