#include "model/op_uses.h"

namespace headrace {

namespace {

class Uses {
 public:
  explicit Uses(const ModelSpec& spec) {
    add(spec.norm == NormKind::kLayer ? "layer_norm" : "rms_norm");
    if (spec.norm == NormKind::kRms) norm_size(spec.hidden_size);
    add("embed");
    add("linear");
    add("add", spec.learned_positions > 0 || spec.token_types > 0);
    add("embed", "inputs of every layer", spec.per_layer_inputs.has_value());
    add("mix_streams", std::holds_alternative<AltUp>(spec.streams));
    add("stream_gates", std::holds_alternative<HyperConnections>(spec.streams));
    for (const LayerSpec& layer : spec.layers) add(layer);
    add("scale", spec.head.logit_scale != 1.0f);
    add("softcap", spec.head.logit_softcap > 0);
    add("gated_activation", spec.head.transform.has_value());
  }
  std::vector<OpUse> take() { return std::move(uses_); }

 private:
  void add(std::string_view op, bool used = true) {
    if (used) uses_.push_back({op});
  }
  void add(std::string_view op, std::string_view feature, bool used) {
    if (used) uses_.push_back({op, feature});
  }

  void norm_size(int64_t size) { uses_.push_back({"rms_norm", "size", size}); }

  void add(const LayerSpec& layer) {
    std::visit([&](const auto& kind) { attention(kind); }, layer.attention);
    std::visit([&](const auto& kind) { feed_forward(kind); }, layer.feed_forward);
    add("paged_attention", "rows of an encoder", layer.cross.has_value());
    add("linear", "learned augmented residual", layer.laurel_rank > 0);
    add("add", layer.post_attention_norm || layer.post_feed_forward_norm);
    add("scale", layer.output_scale || layer.attention_residual.scale != 1.0f ||
                     layer.feed_forward_residual.scale != 1.0f || layer.attention_residual.keep != 1.0f ||
                     layer.feed_forward_residual.keep != 1.0f);
  }

  void attention(const GqaAttention& gqa) {
    add("rope_and_store_kv");
    const bool by_head = gqa.qk_norm_kind != QkNormKind::kWhole && gqa.qk_norm_kind != QkNormKind::kHeadLayer;
    add("rope_and_store_kv", "norm of heads", gqa.qk_norm && by_head);
    add("rope_and_store_kv", "scale by position", gqa.position_scale != 0.0f);
    add("rope_and_store_kv", "values from keys", gqa.values_from_keys);
    add("rope_and_store_kv", "values narrower than keys", gqa.value_dim() != gqa.head_dim);
    add("rope_and_store_kv", "keys of another layer", gqa.kv_layer >= 0);
    if (gqa.qk_norm && gqa.qk_norm_kind == QkNormKind::kWhole) norm_size(int64_t{gqa.num_heads} * gqa.head_dim);
    add("layer_norm", gqa.qk_norm && gqa.qk_norm_kind == QkNormKind::kHeadLayer);
    if (gqa.value_norm) norm_size(gqa.head_dim);
    add("scale", gqa.value_scale != 1.0f);
    uses_.push_back({"paged_attention", "head_dim", gqa.head_dim});
    add("paged_attention", "window", gqa.window > 0);
    add("paged_attention", "soft cap", gqa.logit_softcap > 0);
    add("paged_attention", "sinks", gqa.sinks);
    add("paged_attention", "chunks", gqa.chunk > 0);
    add("paged_attention", "both ways", gqa.both_ways);
    add("paged_attention", "spans", gqa.spans != SpanKind::kIgnored);
    add("paged_attention", "position bias", gqa.position_buckets.has_value());
    add("gated_activation", "gate of attention", gqa.output_gate);
  }
  void attention(const ShortConv&) { add("causal_conv"); }
  void attention(const Mamba&) { add("selective_scan"); }
  void attention(const Mamba2&) { add("linear_recurrence"); }
  void attention(const GatedDelta&) { add("linear_recurrence"); }
  void attention(const KimiDelta&) { add("linear_recurrence"); }
  void attention(const LightningAttention&) { add("linear_recurrence"); }
  void attention(const NoAttention&) {}
  void attention(const AttentionBesideMamba& both) {
    attention(both.attention);
    attention(both.mamba);
  }
  void attention(const LatentAttention&) { add("head_linear"); }
  void attention(const SparseLatentAttention&) { add("select_positions"); }
  void attention(const CompressedAttention&) { add("pool_runs"); }

  void feed_forward(const DenseFeedForward& dense) {
    add("gated_linear", dense.gated);
    add("gated_activation", !dense.gated || dense.gate_scale != 1.0f || dense.gate_cutoff.has_value());
    add("scale", dense.gate_scale != 1.0f || dense.inner_scale != 1.0f);
    add("cut_gates", dense.gate_cutoff.has_value());
  }
  void feed_forward(const MixtureOfExperts&) {
    add("route");
    add("experts");
  }
  void feed_forward(const DenseBesideExperts& both) {
    feed_forward(both.dense);
    feed_forward(both.experts);
  }
  void feed_forward(const NoFeedForward&) {}

  std::vector<OpUse> uses_;
};

}  // namespace

std::vector<OpUse> op_uses(const ModelSpec& spec) { return Uses(spec).take(); }

Status check_op_uses(const ModelSpec& spec, const Backend& backend) {
  for (const OpUse& use : op_uses(spec)) HEADRACE_RETURN_IF_ERROR(backend.check_use(use));
  return Status();
}

}  // namespace headrace
