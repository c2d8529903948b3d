// Parts of the scalar reference that have files of their own.
#pragma once

#include "tensor/op_params.h"
#include "tensor/recurrent_params.h"
#include "tensor/router_params.h"
#include "tensor/stream_params.h"

namespace headrace {

// One stored key or value element of the cache, in float32: token `offset` of the block whose head starts at `head`.
float cached_key(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d);
float cached_value(const KvLayout& layout, const std::byte* head, int32_t offset, int32_t d);

void reference_rope_and_store_kv(const RopeStoreParams& params);
void reference_paged_attention(const PagedAttentionParams& params);
void reference_select_positions(const SelectPositionsParams& params);
void reference_gated_activation(const GatedActivationParams& params);
void reference_experts(const ExpertsParams& params);
void reference_head_linear(const HeadLinearParams& params);
void reference_gate_rows(const GateRowsParams& params);
void reference_mix_streams(const MixStreamsParams& params);
void reference_stream_gates(const StreamGatesParams& params);
void reference_match_magnitude(const MatchMagnitudeParams& params);
void reference_cut_gates(const CutGatesParams& params);
void reference_causal_conv(const CausalConvParams& params);
void reference_pool_runs(const PoolRunsParams& params);
void reference_selective_scan(const SelectiveScanParams& params);
void reference_linear_recurrence(const LinearRecurrenceParams& params);
void reference_decay_gates(const DecayGatesParams& params);
void reference_group_norm(const GroupNormParams& params);
void reference_logit_stats(const LogitStatsParams& params);

}  // namespace headrace
