#include "ops/profiling_backend.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "tensor/seen_positions.h"

namespace headrace {
namespace {

uint64_t floats(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

class ProfilingBackend final : public Backend {
 public:
  ProfilingBackend(std::unique_ptr<Backend> backend, std::shared_ptr<OpProfile> profile)
      : backend_(std::move(backend)), profile_(std::move(profile)) {}

  std::string_view name() const override { return backend_->name(); }
  int num_threads() const override { return backend_->num_threads(); }
  OpProfile* profile() const override { return profile_.get(); }
  std::shared_ptr<DeviceMemory> memory() const override { return backend_->memory(); }
  Status check_use(const OpUse& use) const override { return backend_->check_use(use); }
  Status finish() override { return backend_->finish(); }

  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    // One model has one kind of activations.
    if (is_block_format(source.dtype)) {
      block_arithmetic_ = options.decode_to_float ? ActivationType::kFloat32 : options.activations;
    }
    return backend_->pack(source, options);
  }
  std::string_view packed_layout() const override { return backend_->packed_layout(); }

  Result<std::unique_ptr<BackendTuner>> make_tuner(std::span<const PackedWeight* const> weights,
                                                   const TuneRequest& request) override {
    return backend_->make_tuner(weights, request);
  }

  void embed(const EmbedParams& p) override {
    ProfiledCall call{ProfiledOp::kEmbed};
    call.rows = p.num_tokens;
    const PackedWeight& table = *p.table;
    const uint64_t row_bytes = table.rows() > 0 ? table.bytes() / static_cast<uint64_t>(table.rows()) : 0;
    call.bytes = static_cast<uint64_t>(p.num_tokens) * row_bytes + floats(p.num_tokens * table.cols());
    const ProfiledSpan span(profile_.get(), call);
    backend_->embed(p);
  }

  void rms_norm(const RmsNormParams& p) override {
    ProfiledCall call{ProfiledOp::kNorm};
    call.rows = p.num_tokens;
    call.bytes = floats(2 * p.num_tokens * p.size);
    call.multiply_adds = static_cast<uint64_t>(2 * p.num_tokens * p.size);
    const ProfiledSpan span(profile_.get(), call);
    backend_->rms_norm(p);
  }

  void layer_norm(const LayerNormParams& p) override {
    ProfiledCall call{ProfiledOp::kNorm};
    call.rows = p.num_tokens;
    call.bytes = floats(2 * p.num_tokens * p.groups * p.size);
    call.multiply_adds = static_cast<uint64_t>(2 * p.num_tokens * p.groups * p.size);
    const ProfiledSpan span(profile_.get(), call);
    backend_->layer_norm(p);
  }

  void linear(const LinearParams& p) override {
    const ProfiledSpan span(profile_.get(), products(p.num_tokens, p.in_features, p.outputs));
    backend_->linear(p);
  }

  void gated_linear(const GatedLinearParams& p) override {
    const LinearOutput outputs[] = {{p.gate}, {p.up}};
    const ProfiledSpan span(profile_.get(), products(p.num_tokens, p.in_features, outputs));
    backend_->gated_linear(p);
  }

  void rope_and_store_kv(const RopeStoreParams& p) override {
    ProfiledCall call{ProfiledOp::kRopeStore};
    call.rows = p.num_tokens;
    const int64_t kv_heads = p.k == nullptr ? 0 : p.layout.num_kv_heads, head_dim = p.layout.head_dim;
    const uint64_t token_bytes = p.layout.block_bytes() / static_cast<uint64_t>(std::max(p.layout.block_size, 1));
    // q is read and written, k and v are read, the cache is written.
    call.bytes = floats(p.num_tokens * (2 * p.num_heads + 2 * kv_heads) * head_dim) +
                 (p.k == nullptr ? 0 : static_cast<uint64_t>(p.num_tokens) * token_bytes);
    call.multiply_adds = static_cast<uint64_t>(2 * p.num_tokens * (p.num_heads + kv_heads) * p.rotary_dim);
    const ProfiledSpan span(profile_.get(), call);
    backend_->rope_and_store_kv(p);
  }

  void paged_attention(const PagedAttentionParams& p) override {
    ProfiledCall call{ProfiledOp::kAttention};
    call.rows = p.num_seqs > 0 ? p.query_start[p.num_seqs] : 0;
    call.sequences = p.num_seqs;
    const uint64_t token_bytes = p.layout.block_bytes() / static_cast<uint64_t>(std::max(p.layout.block_size, 1));
    uint64_t pairs = 0;
    for (int32_t sequence = 0; sequence < p.num_seqs; ++sequence) {
      const int32_t first = p.query_start[sequence], end = p.query_start[sequence + 1];
      for (int32_t row = first; row < end; ++row) {
        pairs += static_cast<uint64_t>(seen_end(p, sequence, row) - seen_begin(p, row));
      }
      // From the first row's first key to the last row's last.
      if (first < end && !is_listed(p)) {
        call.bytes += static_cast<uint64_t>(seen_end(p, sequence, end - 1) - seen_begin(p, first)) * token_bytes;
      }
    }
    if (is_listed(p)) call.bytes += pairs * token_bytes;  // row by row
    call.bytes += floats(2 * call.rows * p.num_heads * p.layout.head_dim);
    call.multiply_adds = 2 * pairs * static_cast<uint64_t>(p.num_heads) * static_cast<uint64_t>(p.layout.head_dim);
    const ProfiledSpan span(profile_.get(), call);
    backend_->paged_attention(p);
  }

  void select_positions(const SelectPositionsParams& p) override {
    ProfiledCall call{ProfiledOp::kSelectPositions};
    call.rows = p.num_seqs > 0 ? p.query_start[p.num_seqs] : 0;
    call.sequences = p.num_seqs;
    const uint64_t key_bytes = p.layout.block_bytes() / static_cast<uint64_t>(std::max(p.layout.rows_per_block(), 1));
    uint64_t pairs = 0;
    const auto keys_before = [&](int64_t row) { return static_cast<uint64_t>(p.layout.rows_before(p.positions[row])); };
    for (int64_t row = 0; row < call.rows; ++row) pairs += keys_before(row);
    for (int32_t sequence = 0; sequence < p.num_seqs; ++sequence) {
      const int32_t end = p.query_start[sequence + 1];
      if (p.query_start[sequence] < end) call.bytes += keys_before(end - 1) * key_bytes;
    }
    call.bytes += floats(call.rows * (int64_t{p.num_heads} * (p.layout.head_dim + 1) + p.top_k));
    call.multiply_adds = pairs * static_cast<uint64_t>(p.num_heads) * static_cast<uint64_t>(p.layout.head_dim + 1);
    const ProfiledSpan span(profile_.get(), call);
    backend_->select_positions(p);
  }

  void gated_activation(const GatedActivationParams& p) override {
    const ProfiledSpan span(profile_.get(),
                            elementwise(ProfiledOp::kActivation, p.num_elements, p.up == nullptr ? 2 : 3));
    backend_->gated_activation(p);
  }

  void add(const AddParams& p) override {
    const ProfiledSpan span(profile_.get(), elementwise(ProfiledOp::kAdd, p.num_elements, 3));
    backend_->add(p);
  }

  void scale(const ScaleParams& p) override {
    const ProfiledSpan span(profile_.get(), elementwise(ProfiledOp::kScale, p.num_elements, 2));
    backend_->scale(p);
  }

  void softcap(const SoftcapParams& p) override {
    const ProfiledSpan span(profile_.get(), elementwise(ProfiledOp::kSoftcap, p.num_elements, 2));
    backend_->softcap(p);
  }

  void logit_stats(const LogitStatsParams& p) override {
    ProfiledCall call{ProfiledOp::kLogitStats};
    call.rows = p.num_rows;
    call.bytes = floats(p.num_rows * p.vocab_size);
    const ProfiledSpan span(profile_.get(), call);
    backend_->logit_stats(p);
  }

  void route(const RouteParams& p) override {
    ProfiledCall call{ProfiledOp::kRoute};
    call.rows = p.num_tokens;
    call.bytes = floats(p.num_tokens * (p.num_experts + 2 * p.top_k));
    const ProfiledSpan span(profile_.get(), call);
    backend_->route(p);
  }

  void experts(const ExpertsParams& p) override {
    ProfiledCall call{ProfiledOp::kExperts};
    call.rows = p.num_tokens;
    call.in_features = p.hidden_size;
    call.out_features = p.intermediate_size;
    std::bitset<4096> seen;
    bool any_block = false;
    for (int64_t i = 0; i < p.num_tokens * p.top_k; ++i) {
      const auto index = static_cast<size_t>(p.experts[i]);
      if (index < seen.size()) {
        if (seen[index]) continue;
        seen.set(index);
      }
      const ExpertWeights& expert = p.all_experts[index];
      for (const PackedWeight* weight : {expert.gate, expert.up, expert.down}) {
        if (weight != nullptr) any_block = count_weight(*weight, call) || any_block;
      }
    }
    if (any_block) call.arithmetic = block_arithmetic_;
    const int64_t matrices = p.all_experts[0].gate != nullptr ? 3 : 2;
    call.multiply_adds = static_cast<uint64_t>(matrices * p.num_tokens * p.top_k) *
                         static_cast<uint64_t>(p.hidden_size) * static_cast<uint64_t>(p.intermediate_size);
    const ProfiledSpan span(profile_.get(), call);
    backend_->experts(p);
  }

  void head_linear(const HeadLinearParams& p) override {
    ProfiledCall call{ProfiledOp::kHeadLinear};
    call.rows = p.num_tokens;
    call.in_features = p.in_features;
    bool any_block = false;
    for (const PackedWeight* weight : p.weights) {
      any_block = count_weight(*weight, call) || any_block;
      call.out_features += weight->rows();
    }
    if (any_block) call.arithmetic = block_arithmetic_;
    call.multiply_adds = static_cast<uint64_t>(p.num_tokens) * static_cast<uint64_t>(p.in_features) *
                         static_cast<uint64_t>(call.out_features);
    const ProfiledSpan span(profile_.get(), call);
    backend_->head_linear(p);
  }

  void gate_rows(const GateRowsParams& p) override {
    ProfiledCall call = elementwise(ProfiledOp::kGateRows, p.num_tokens * p.size, 2);
    call.rows = p.num_tokens;
    const ProfiledSpan span(profile_.get(), call);
    backend_->gate_rows(p);
  }

  void mix_streams(const MixStreamsParams& p) override {
    ProfiledCall call = elementwise(ProfiledOp::kStreams, p.num_tokens * p.size, p.num_in + p.num_out);
    call.rows = p.num_tokens;
    call.multiply_adds = static_cast<uint64_t>(p.num_tokens * p.size * p.num_in * p.num_out);
    const ProfiledSpan span(profile_.get(), call);
    backend_->mix_streams(p);
  }

  void stream_gates(const StreamGatesParams& p) override {
    const int64_t n = p.num_streams, width = p.leave == nullptr ? n : n * (n + 2);
    ProfiledCall call = elementwise(ProfiledOp::kStreams, p.num_tokens * width, 2);
    call.rows = p.num_tokens;
    const ProfiledSpan span(profile_.get(), call);
    backend_->stream_gates(p);
  }

  void match_magnitude(const MatchMagnitudeParams& p) override {
    ProfiledCall call = elementwise(ProfiledOp::kStreams, p.num_tokens * p.size, 3);
    call.rows = p.num_tokens;
    const ProfiledSpan span(profile_.get(), call);
    backend_->match_magnitude(p);
  }

  void cut_gates(const CutGatesParams& p) override {
    ProfiledCall call = elementwise(ProfiledOp::kActivation, p.num_tokens * p.size, 2);
    call.rows = p.num_tokens;
    const ProfiledSpan span(profile_.get(), call);
    backend_->cut_gates(p);
  }

  void causal_conv(const CausalConvParams& p) override {
    ProfiledCall call = recurrent(ProfiledOp::kCausalConv, p.rows, (p.kernel - 1) * p.channels, 2 * p.channels);
    call.multiply_adds = static_cast<uint64_t>(call.rows * p.channels * p.kernel);
    const ProfiledSpan span(profile_.get(), call);
    backend_->causal_conv(p);
  }

  void pool_runs(const PoolRunsParams& p) override {
    const int64_t series = p.overlap ? 2 : 1;
    ProfiledCall call = recurrent(ProfiledOp::kRecurrence, p.rows, 3 * series * p.channels, 2 * series * p.channels);
    call.multiply_adds = static_cast<uint64_t>(2 * call.rows * series * p.channels);
    const ProfiledSpan span(profile_.get(), call);
    backend_->pool_runs(p);
  }

  void selective_scan(const SelectiveScanParams& p) override {
    const int64_t state = p.state_size * p.channels;
    ProfiledCall call = recurrent(ProfiledOp::kRecurrence, p.rows, state, 4 * p.channels + 2 * p.state_size);
    call.multiply_adds = static_cast<uint64_t>(3 * call.rows * state);
    const ProfiledSpan span(profile_.get(), call);
    backend_->selective_scan(p);
  }

  void linear_recurrence(const LinearRecurrenceParams& p) override {
    const int64_t state = p.num_heads * p.key_dim * p.value_dim;
    ProfiledCall call = recurrent(ProfiledOp::kRecurrence, p.rows, state,
                                  2 * p.num_key_heads * p.key_dim + 2 * p.num_heads * p.value_dim);
    call.multiply_adds = static_cast<uint64_t>((p.delta ? 4 : 3) * call.rows * state);
    const ProfiledSpan span(profile_.get(), call);
    backend_->linear_recurrence(p);
  }

  void decay_gates(const DecayGatesParams& p) override {
    ProfiledCall call = elementwise(ProfiledOp::kDecayGates, p.num_tokens * p.width, p.step == nullptr ? 2 : 3);
    call.rows = p.num_tokens;
    const ProfiledSpan span(profile_.get(), call);
    backend_->decay_gates(p);
  }

  void group_norm(const GroupNormParams& p) override {
    ProfiledCall call{ProfiledOp::kNorm};
    call.rows = p.num_tokens;
    call.bytes = floats((p.gate == nullptr ? 2 : 3) * p.num_tokens * p.groups * p.size);
    call.multiply_adds = static_cast<uint64_t>(2 * p.num_tokens * p.groups * p.size);
    const ProfiledSpan span(profile_.get(), call);
    backend_->group_norm(p);
  }

 private:
  // Each sequence's state is read and written once, and so are the floats of a row.
  static ProfiledCall recurrent(ProfiledOp op, const StateRows& rows, int64_t state_floats, int64_t row_floats) {
    ProfiledCall call{op};
    call.rows = rows.num_seqs > 0 ? rows.query_start[rows.num_seqs] : 0;
    call.sequences = rows.num_seqs;
    call.bytes = floats(2 * rows.num_seqs * state_floats + call.rows * row_floats);
    return call;
  }

  // True where its values come in blocks.
  static bool count_weight(const PackedWeight& weight, ProfiledCall& call) {
    call.weight_types |= uint64_t{1} << static_cast<int>(weight.dtype());
    call.bytes += weight.bytes();
    return is_block_format(weight.dtype());
  }

  // Products of the same rows.
  ProfiledCall products(int64_t rows, int64_t in_features, std::span<const LinearOutput> outputs) const {
    ProfiledCall call{ProfiledOp::kLinear};
    call.rows = rows;
    call.in_features = in_features;
    bool any_block = false;
    for (const LinearOutput& output : outputs) {
      any_block = count_weight(*output.weight, call) || any_block;
      call.out_features += output.weight->rows();
    }
    if (any_block) call.arithmetic = block_arithmetic_;
    call.multiply_adds =
        static_cast<uint64_t>(rows) * static_cast<uint64_t>(in_features) * static_cast<uint64_t>(call.out_features);
    return call;
  }

  // `touched` floats per element. Their functions are no multiply-adds.
  static ProfiledCall elementwise(ProfiledOp op, int64_t num_elements, int64_t touched) {
    ProfiledCall call{op};
    call.bytes = floats(touched * num_elements);
    return call;
  }

  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<OpProfile> profile_;
  ActivationType block_arithmetic_ = ActivationType::kFloat32;
};

}  // namespace

std::unique_ptr<Backend> make_profiling_backend(std::unique_ptr<Backend> backend, std::shared_ptr<OpProfile> profile) {
  return std::make_unique<ProfilingBackend>(std::move(backend), std::move(profile));
}

}  // namespace headrace
