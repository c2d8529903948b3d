// OLMo hybrid: gated delta layers with norms before the blocks, and in every fourth layer OLMo's attention with norms
// after them. Reference: transformers models/olmo_hybrid.
#include "model/families/config_keys.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias", "layer_types", "linear_allow_neg_eigval", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
    // Initial values of training.
    "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min"};

// Released models do not rotate and say so by a theta of null.
Result<RopeSpec> read_rope_if_any(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  if (!nested.has("rope_theta") && !config.has("rope_theta")) {
    HEADRACE_RETURN_IF_ERROR(nested.check_known(std::to_array<std::string_view>({"rope_type"})));
    return RopeSpec();
  }
  return read_rotation(config, spec, 10000.0);
}

// Checkpoints cut the convolution of q, k and v into their channels, transformers writes it in thirds.
Result<std::array<int32_t, 3>> read_conv_parts(const TensorFile& weights, size_t layer, const GatedDelta& delta) {
  std::array<int32_t, 3> parts{static_cast<int32_t>(delta.keys()), static_cast<int32_t>(delta.keys()),
                               static_cast<int32_t>(delta.values())};
  const std::string prefix = fmt::format("model.layers.{}.linear_attn.", layer);
  if (!has_prefix(weights, prefix)) return parts;
  int64_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("{}{}_conv1d.weight", prefix, "qkv"[i]);
    const TensorEntry* tensor = weights.find(name);
    if (tensor == nullptr) return not_found(name, "the file has no such tensor");
    const uint64_t channels = tensor->shape.empty() ? 0 : tensor->shape[0];
    if (channels < 1 || channels > static_cast<uint64_t>(delta.conv_channels())) {
      return malformed(name, "{} channels of the {} that the layer has", channels, delta.conv_channels());
    }
    parts[i] = static_cast<int32_t>(channels);
    sum += parts[i];
  }
  if (sum != delta.conv_channels()) {
    return malformed(fmt::format("{0}q_conv1d.weight, {0}k_conv1d.weight and {0}v_conv1d.weight", prefix),
                     "{} channels, the layer has {}", sum, delta.conv_channels());
  }
  return parts;
}

Result<GatedDelta> read_olmo_delta(const ConfigReader& config, const ModelSpec& spec, int32_t num_heads) {
  GatedDelta defaults;
  defaults.num_heads = defaults.num_key_heads = num_heads;
  defaults.kernel = 4;
  defaults.norm_eps = 1e-5f;  // whatever that of the others is
  HEADRACE_ASSIGN_OR_RETURN(const int64_t key_heads, config.integer_or("linear_num_key_heads", 1, 1 << 14, num_heads));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t key_dim, config.integer_or("linear_key_head_dim", 1, 1 << 12,
                                                                     3 * spec.hidden_size / (4 * key_heads)));
  defaults.key_dim = static_cast<int32_t>(key_dim);
  defaults.value_dim = 2 * defaults.key_dim;
  HEADRACE_ASSIGN_OR_RETURN(const bool negative, config.boolean_or("linear_allow_neg_eigval", true));
  defaults.step_scale = negative ? 2.0f : 1.0f;
  return read_delta(config, defaults);
}

Result<ModelSpec> olmo_hybrid_from_config(const ConfigReader& config, const TensorFile& weights) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.vocab_size = 100352;
  defaults.hidden_size = 3840;
  defaults.intermediate_size = 11008;
  defaults.num_layers = 32;
  defaults.num_heads = 30;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 65536;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, {}));
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  spec.architecture = "olmo_hybrid";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rope_if_any(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(GatedDelta delta, read_olmo_delta(config, spec, gqa(spec.layers[0]).num_heads));
  std::vector<bool> attends(spec.layers.size());
  for (size_t i = 3; i < attends.size(); i += 4) attends[i] = true;
  if (attends.size() < 4) attends.back() = true;
  if (config.has("layer_types")) {
    HEADRACE_ASSIGN_OR_RETURN(attends, read_attending(config, spec.layers.size()));
  }
  for (size_t i = 0; i < attends.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (!attends[i]) {
      HEADRACE_ASSIGN_OR_RETURN(delta.conv_parts, read_conv_parts(weights, i, delta));
      layer.attention = delta;
      continue;
    }
    layer.attention_norm = layer.feed_forward_norm = false;
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
    gqa(layer).rope = rope;
    gqa(layer).qk_norm = true;
    gqa(layer).qk_norm_kind = QkNormKind::kWhole;
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"mixer_q", "linear_attn.q_proj"},
    {"mixer_k", "linear_attn.k_proj"},
    {"mixer_v", "linear_attn.v_proj"},
    {"mixer_z", "linear_attn.g_proj"},
    {"mixer_beta", "linear_attn.b_proj"},
    {"mixer_alpha", "linear_attn.a_proj"},
    {"conv_q", "linear_attn.q_conv1d"},
    {"conv_k", "linear_attn.k_conv1d"},
    {"conv_v", "linear_attn.v_conv1d"},
    {"step.bias", "linear_attn.dt_bias"},
    {"rate", "linear_attn.A_log"},
    {"mixer_norm", "linear_attn.o_norm"},
    {"mixer_out", "linear_attn.o_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "attention_layer_norm"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "feedforward_layer_norm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_attention_norm", "feedforward_layer_norm"},  // as transformers writes it
    {"post_feed_forward_norm", "post_feedforward_layernorm"},
};

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kOlmoHybridFamily = {
    "olmo_hybrid", "OlmoHybridForCausalLM", "olmo_hybrid", "", olmo_hybrid_from_config, nullptr, names, nullptr};

}  // namespace headrace
