// Qwen3.5 (text, dense) and the parts that Qwen3-Next shares with it: gated delta layers, and attention with an output
// gate in every fourth. Reference: transformers models/qwen3_5, models/qwen3_next. Norm weights are stored minus one,
// but for the norm of a delta layer's output.
#include "model/families/recurrent_decoder.h"

namespace headrace {

namespace {

Result<GatedDelta> read_delta(const ConfigReader& config, const ModelSpec& spec) {
  GatedDelta delta;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, config.integer_or("linear_conv_kernel_dim", 2, kMostConvKernel, 4));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t key_dim, config.integer_or("linear_key_head_dim", 1, 1 << 12, 128));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value_dim, config.integer_or("linear_value_head_dim", 1, 1 << 12, 128));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t key_heads, config.integer_or("linear_num_key_heads", 1, 1 << 14, 16));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("linear_num_value_heads", 1, 1 << 14, 32));
  delta.kernel = static_cast<int32_t>(kernel);
  delta.key_dim = static_cast<int32_t>(key_dim);
  delta.value_dim = static_cast<int32_t>(value_dim);
  delta.num_key_heads = static_cast<int32_t>(key_heads);
  delta.num_heads = static_cast<int32_t>(heads);
  delta.norm_eps = spec.norm_eps;
  return delta;
}

Result<ModelSpec> qwen3_5_from_config(const ConfigReader& config, const TensorFile&) {
  DenseDefaults defaults;
  defaults.vocab_size = 248320;
  defaults.hidden_size = 4096;
  defaults.intermediate_size = 12288;
  defaults.num_layers = 32;
  defaults.num_heads = 16;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 256;
  defaults.max_position_embeddings = 32768;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "qwen3_5";
  spec.norm_weight_offset = 1.0f;
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 0.25));
  HEADRACE_ASSIGN_OR_RETURN(const GatedDelta delta, read_delta(config, spec));
  std::vector<std::string> types;
  if (config.has("layer_types")) {
    HEADRACE_ASSIGN_OR_RETURN(types, read_mixed_layer_types(config, spec.layers.size()));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t period, config.integer_or("full_attention_interval", 1, 4096, 4));
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      types.push_back(static_cast<int64_t>(i + 1) % period == 0 ? "full_attention" : "linear_attention");
    }
  }
  for (size_t i = 0; i < types.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (types[i] == "linear_attention") {
      layer.attention = delta;
    } else if (types[i] == "full_attention") {
      gqa(layer).rope = rope;
      gqa(layer).qk_norm = true;
      gqa(layer).output_gate = true;
    } else {
      return unsupported(config.place_of("layer_types"), "unknown layer type '{}'", types[i]);
    }
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"q_gate", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"mixer_q", "linear_attn.in_proj_qkv"},
    {"mixer_k", "linear_attn.in_proj_qkv"},
    {"mixer_v", "linear_attn.in_proj_qkv"},
    {"mixer_z", "linear_attn.in_proj_z"},
    {"mixer_beta", "linear_attn.in_proj_b"},
    {"mixer_alpha", "linear_attn.in_proj_a"},
    {"conv", "linear_attn.conv1d"},
    {"step.bias", "linear_attn.dt_bias"},
    {"rate", "linear_attn.A_log"},
    {"mixer_norm", "linear_attn.norm"},
    {"mixer_out", "linear_attn.out_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};
constexpr NamePair kTop[] = {{"embed", "model.embed_tokens"}, {"final_norm", "model.norm"}, {"lm_head", "lm_head"}};
constexpr std::string_view kIgnored[] = {"lm_head.weight"};

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kTop, {}, kIgnored}; }

}  // namespace

const Family kQwen35Family = {"qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text", "", qwen3_5_from_config, nullptr, names,
                              nullptr};

}  // namespace headrace
