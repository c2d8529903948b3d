#include "model/model_spec.h"

#include <cmath>

namespace headrace {

namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 18;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

Status check_range(const std::string& place, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) return malformed(place, "{} is outside [{}, {}]", value, low, high);
  return {};
}

Status check_finite(const std::string& place, float value) {
  if (!std::isfinite(value)) return malformed(place, "not a finite number");
  return {};
}

Status check_rope(const std::string& place, const RopeSpec& rope, int32_t head_dim) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "rotary_dim", rope.rotary_dim, 0, head_dim));
  if (rope.rotary_dim % 2 != 0) return malformed(place + "rotary_dim", "{} is odd", rope.rotary_dim);
  if (rope.inv_freq.size() != static_cast<size_t>(rope.rotary_dim) / 2) {
    return malformed(place + "inv_freq", "{} frequencies for {} rotating dims", rope.inv_freq.size(), rope.rotary_dim);
  }
  for (const float frequency : rope.inv_freq) HEADRACE_RETURN_IF_ERROR(check_finite(place + "inv_freq", frequency));
  return check_finite(place + "attention_factor", rope.attention_factor);
}

Status check_attention(const std::string& place, const GqaAttention& attention) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", attention.num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_kv_heads", attention.num_kv_heads, 1, attention.num_heads));
  if (attention.num_heads % attention.num_kv_heads != 0) {
    return malformed(place + "num_kv_heads", "{} query heads are no multiple of {} key/value heads",
                     attention.num_heads, attention.num_kv_heads);
  }
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", attention.head_dim, 1, kMaxHeadDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "window", attention.window, 0, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", attention.scale));
  if (!std::isfinite(attention.logit_softcap) || attention.logit_softcap < 0) {
    return malformed(place + "logit_softcap", "not a finite number of at least 0");
  }
  return check_rope(place + "rope.", attention.rope, attention.head_dim);
}

nlohmann::ordered_json rope_to_json(const RopeSpec& rope) {
  return {{"type", rope.type},
          {"theta", rope.theta},
          {"rotary_dim", rope.rotary_dim},
          {"attention_factor", rope.attention_factor},
          {"interleaved", rope.interleaved},
          {"inv_freq", rope.inv_freq}};
}

nlohmann::ordered_json attention_to_json(const GqaAttention& attention) {
  return {{"kind", "gqa"},
          {"num_heads", attention.num_heads},
          {"num_kv_heads", attention.num_kv_heads},
          {"head_dim", attention.head_dim},
          {"scale", attention.scale},
          {"window", attention.window},
          {"logit_softcap", attention.logit_softcap},
          {"qkv_bias", attention.qkv_bias},
          {"output_bias", attention.output_bias},
          {"qk_norm", attention.qk_norm},
          {"rope", rope_to_json(attention.rope)}};
}

nlohmann::ordered_json feed_forward_to_json(const DenseFeedForward& dense) {
  return {{"kind", "dense"},
          {"intermediate_size", dense.intermediate_size},
          {"activation", activation_name(dense.activation)},
          {"bias", dense.bias}};
}

}  // namespace

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return "silu";
    case Activation::kGeluTanh: return "gelu_tanh";
    case Activation::kGeluErf: return "gelu_erf";
    case Activation::kRelu: return "relu";
  }
  return "?";
}

Status validate_spec(const ModelSpec& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range("vocab_size", spec.vocab_size, 1, kMaxVocab));
  HEADRACE_RETURN_IF_ERROR(check_range("hidden_size", spec.hidden_size, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range("max_position_embeddings", spec.max_position_embeddings, 1, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_range("num_hidden_layers", static_cast<int64_t>(spec.layers.size()), 1, kMaxLayers));
  HEADRACE_RETURN_IF_ERROR(check_finite("embedding_scale", spec.embedding_scale));
  if (!(spec.norm_eps > 0) || !std::isfinite(spec.norm_eps)) return malformed("norm_eps", "must be a positive number");
  if (!std::isfinite(spec.head.logit_softcap) || spec.head.logit_softcap < 0) {
    return malformed("final_logit_softcapping", "not a finite number of at least 0");
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string place = fmt::format("layers.{}.", i);
    HEADRACE_RETURN_IF_ERROR(
        std::visit([&](const auto& attention) { return check_attention(place + "attention.", attention); },
                   spec.layers[i].attention));
    HEADRACE_RETURN_IF_ERROR(std::visit(
        [&](const auto& dense) {
          return check_range(place + "feed_forward.intermediate_size", dense.intermediate_size, 1, kMaxIntermediate);
        },
        spec.layers[i].feed_forward));
  }
  // The head may be larger than the tokens in use, never smaller: an id beyond it could not be embedded.
  for (const int32_t id : spec.eos_token_ids) {
    HEADRACE_RETURN_IF_ERROR(check_range("eos_token_id", id, 0, spec.vocab_size - 1));
  }
  return check_range("bos_token_id", spec.bos_token_id, -1, spec.vocab_size - 1);
}

std::vector<KvLayout> kv_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size) {
  std::vector<KvLayout> layouts;
  layouts.reserve(spec.layers.size());
  for (const LayerSpec& layer : spec.layers) {
    const auto& attention = std::get<GqaAttention>(layer.attention);
    layouts.push_back({dtype, attention.num_kv_heads, attention.head_dim, block_size});
  }
  return layouts;
}

uint64_t kv_bytes_per_token(const ModelSpec& spec, KvDType dtype) {
  uint64_t block = 0;
  for (const KvLayout& layout : kv_layouts(spec, dtype)) block += layout.block_bytes();
  return (block + 15) / 16;
}

nlohmann::ordered_json spec_to_json(const ModelSpec& spec) {
  nlohmann::ordered_json json = {{"architecture", spec.architecture},
                                 {"vocab_size", spec.vocab_size},
                                 {"hidden_size", spec.hidden_size},
                                 {"max_position_embeddings", spec.max_position_embeddings},
                                 {"embedding_scale", spec.embedding_scale},
                                 {"norm_eps", spec.norm_eps},
                                 {"norm_weight_offset", spec.norm_weight_offset},
                                 {"tied", spec.head.tied},
                                 {"final_logit_softcap", spec.head.logit_softcap}};
  auto layers = nlohmann::ordered_json::array();
  for (const LayerSpec& layer : spec.layers) {
    nlohmann::ordered_json item;
    item["attention"] = std::visit([](const auto& attention) { return attention_to_json(attention); }, layer.attention);
    item["feed_forward"] =
        std::visit([](const auto& dense) { return feed_forward_to_json(dense); }, layer.feed_forward);
    item["post_attention_norm"] = layer.post_attention_norm;
    item["post_feed_forward_norm"] = layer.post_feed_forward_norm;
    layers.push_back(std::move(item));
  }
  json["layers"] = std::move(layers);
  return json;
}

}  // namespace headrace
