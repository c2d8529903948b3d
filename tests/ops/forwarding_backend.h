// A backend that hands everything on to another: tests override the op that they want to see or to spoil.
#pragma once

#include <memory>
#include <utility>

#include "ops/backend.h"

namespace headrace::test {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& backend) : backend_(backend) {}

  std::string_view name() const override { return backend_.name(); }
  int num_threads() const override { return backend_.num_threads(); }
  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    return backend_.pack(source, options);
  }
  void embed(const EmbedParams& p) override { backend_.embed(p); }
  void rms_norm(const RmsNormParams& p) override { backend_.rms_norm(p); }
  void layer_norm(const LayerNormParams& p) override { backend_.layer_norm(p); }
  void linear(const LinearParams& p) override { backend_.linear(p); }
  void gated_linear(const GatedLinearParams& p) override { backend_.gated_linear(p); }
  void rope_and_store_kv(const RopeStoreParams& p) override { backend_.rope_and_store_kv(p); }
  void paged_attention(const PagedAttentionParams& p) override { backend_.paged_attention(p); }
  void select_positions(const SelectPositionsParams& p) override { backend_.select_positions(p); }
  void gated_activation(const GatedActivationParams& p) override { backend_.gated_activation(p); }
  void add(const AddParams& p) override { backend_.add(p); }
  void scale(const ScaleParams& p) override { backend_.scale(p); }
  void softcap(const SoftcapParams& p) override { backend_.softcap(p); }
  void route(const RouteParams& p) override { backend_.route(p); }
  void experts(const ExpertsParams& p) override { backend_.experts(p); }
  void head_linear(const HeadLinearParams& p) override { backend_.head_linear(p); }
  void gate_rows(const GateRowsParams& p) override { backend_.gate_rows(p); }
  void stream_gates(const StreamGatesParams& p) override { backend_.stream_gates(p); }
  void pool_runs(const PoolRunsParams& p) override { backend_.pool_runs(p); }
  void mix_streams(const MixStreamsParams& p) override { backend_.mix_streams(p); }
  void match_magnitude(const MatchMagnitudeParams& p) override { backend_.match_magnitude(p); }
  void cut_gates(const CutGatesParams& p) override { backend_.cut_gates(p); }
  void causal_conv(const CausalConvParams& p) override { backend_.causal_conv(p); }
  void selective_scan(const SelectiveScanParams& p) override { backend_.selective_scan(p); }
  void linear_recurrence(const LinearRecurrenceParams& p) override { backend_.linear_recurrence(p); }
  void decay_gates(const DecayGatesParams& p) override { backend_.decay_gates(p); }
  void group_norm(const GroupNormParams& p) override { backend_.group_norm(p); }
  void logit_stats(const LogitStatsParams& p) override { backend_.logit_stats(p); }

 private:
  Backend& backend_;
};

}  // namespace headrace::test
