// Falcon-H1: attention and a Mamba-2 layer side by side in every layer, with fixed factors at many places.
// Reference: transformers models/falcon_h1. In GGUF the factors are in the weights.
#include <cmath>

#include "formats/json.h"
#include "model/families/config_keys.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

Result<std::vector<float>> factors(const ConfigReader& config, const char* key, size_t count) {
  std::vector<float> out(count, 1.0f);
  const nlohmann::json* list = config.find(key);
  if (list == nullptr) return out;
  if (!list->is_array() || list->size() != count) {
    return malformed(config.place_of(key), "not a list of {} numbers", count);
  }
  for (size_t i = 0; i < count; ++i) {
    const auto number = json_number((*list)[i]);
    if (!number || !std::isfinite(*number)) return malformed(config.place_of(key), "not a list of {} numbers", count);
    out[i] = static_cast<float>(*number);
  }
  return out;
}

Result<float> factor(const ConfigReader& config, const char* key) {
  HEADRACE_ASSIGN_OR_RETURN(const double value, config.number_or(key, 1.0));
  return static_cast<float>(value);
}

Result<Mamba2> read_mamba(const ConfigReader& config) {
  Mamba2 mamba;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("mamba_d_ssm", 1, 1 << 20, 1024));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("mamba_n_heads", 1, 1 << 14, 128));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t groups, config.integer_or("mamba_n_groups", 1, 1 << 14, 1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t states, config.integer_or("mamba_d_state", 1, 1 << 12, 256));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, config.integer_or("mamba_d_conv", 2, kMostConvKernel, 4));
  if (inner % heads != 0) {
    return malformed(config.place_of("mamba_d_ssm"), "{} is no multiple of {} heads", inner, heads);
  }
  if (const auto* stated = config.find("mamba_d_head"); stated != nullptr && *stated != "auto") {
    HEADRACE_RETURN_IF_ERROR(config.only("mamba_d_head", inner / heads));
  }
  mamba.num_heads = static_cast<int32_t>(heads);
  mamba.head_dim = static_cast<int32_t>(inner / heads);
  mamba.num_groups = mamba.norm_groups = static_cast<int32_t>(groups);
  mamba.state_size = static_cast<int32_t>(states);
  mamba.kernel = static_cast<int32_t>(kernel);
  HEADRACE_ASSIGN_OR_RETURN(mamba.conv_bias, config.boolean_or("mamba_conv_bias", true));
  HEADRACE_ASSIGN_OR_RETURN(mamba.bias, config.boolean_or("mamba_proj_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const bool output_bias, config.boolean_or("projectors_bias", false));
  if (mamba.bias != output_bias) {
    return unsupported(config.place_of("projectors_bias"), "a bias of one of Mamba's projections alone is not built");
  }
  HEADRACE_ASSIGN_OR_RETURN(mamba.gated_norm, config.boolean_or("mamba_rms_norm", false));
  HEADRACE_ASSIGN_OR_RETURN(mamba.norm_first, config.boolean_or("mamba_norm_before_gate", true));
  HEADRACE_RETURN_IF_ERROR(read_step_limits(config, mamba));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> scales, factors(config, "ssm_multipliers", 5));
  HEADRACE_ASSIGN_OR_RETURN(const float input, factor(config, "ssm_in_multiplier"));
  if (mamba.bias && input != 1.0f) {
    return unsupported(config.place_of("mamba_proj_bias"), "a bias beside ssm_in_multiplier is not supported");
  }
  for (size_t i = 0; i < scales.size(); ++i) mamba.scales[i] = input * scales[i];
  return mamba;
}

constexpr std::string_view kOwnKeys[] = {
    "attention_bias", "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier",
    "lm_head_multiplier", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_ssm", "mamba_d_state",
    "mamba_n_groups", "mamba_n_heads", "mamba_norm_before_gate", "mamba_proj_bias", "mamba_rms_norm", "mlp_bias",
    "mlp_multipliers", "projectors_bias", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
    "time_step_limit", "attn_layer_indices", "mamba_use_mlp",
    // How the recurrence is computed, and factors of which mamba_d_ssm and intermediate_size are the products.
    "mamba_chunk_size", "mamba_expand", "mlp_expansion_factor"};

Result<ModelSpec> falcon_h1_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attn_layer_indices", nullptr));
  HEADRACE_RETURN_IF_ERROR(config.only("mamba_use_mlp", true));
  DenseDefaults defaults;
  defaults.vocab_size = 128000;
  defaults.hidden_size = 4096;
  defaults.intermediate_size = 14336;
  defaults.num_layers = 32;
  defaults.num_heads = 32;
  defaults.num_kv_heads = 8;
  defaults.max_position_embeddings = 8192;
  defaults.norm_eps = 1e-5;
  defaults.own_keys = {"embedding_multiplier"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "falcon_h1";
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(spec.embedding_scale, factor(config, "embedding_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(spec.head.logit_scale, factor(config, "lm_head_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(const float attention_in, factor(config, "attention_in_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(const float attention_out, factor(config, "attention_out_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(const float key_scale, factor(config, "key_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(const float mamba_out, factor(config, "ssm_out_multiplier"));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> inner, factors(config, "mlp_multipliers", 2));
  AttentionBesideMamba both;
  HEADRACE_ASSIGN_OR_RETURN(both.mamba, read_mamba(config));
  both.attention = gqa(spec.layers[0]);
  both.attention.rope = rope;
  // Projections are linear and the rotation too: factors of q, k and v may as well meet their products.
  both.attention.scale *= attention_in * attention_in * key_scale;
  both.attention_scale = attention_in * attention_out;
  both.mamba_scale = mamba_out;
  for (LayerSpec& layer : spec.layers) {
    layer.attention = both;
    dense(layer).gate_scale = inner[0];
    dense(layer).inner_scale = inner[1];
  }
  return spec;
}

constexpr std::string_view kGgufKeys[] = {"feed_forward_length",  "attention.head_count",   "attention.head_count_kv",
                                          "attention.key_length", "attention.value_length", "rope.freq_base",
                                          "rope.dimension_count", "ssm.conv_kernel",        "ssm.inner_size",
                                          "ssm.state_size",       "ssm.time_step_rank",     "ssm.group_count"};

Result<ModelSpec> falcon_h1_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, kGgufKeys));
  spec.architecture = "falcon_h1";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t width, gguf.integer("feed_forward_length", 1, 1 << 22));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kv_heads, gguf.integer("attention.head_count_kv", 1, INT32_MAX));
  AttentionBesideMamba both;
  HEADRACE_ASSIGN_OR_RETURN(both.attention, read_gguf_attention(gguf, spec, kv_heads));
  HEADRACE_ASSIGN_OR_RETURN(both.mamba, read_gguf_mamba2(gguf));
  both.mamba.gated_norm = gguf.file().find("blk.0.ssm_norm.weight") != nullptr;
  both.mamba.norm_first = false;
  DenseFeedForward feed_forward;
  feed_forward.intermediate_size = static_cast<int32_t>(width);
  for (LayerSpec& layer : spec.layers) {
    layer.attention = both;
    layer.feed_forward = feed_forward;
    layer.feed_forward_norm = true;
  }
  return spec;
}

constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"mixer_z", "mamba.in_proj"},
    {"mixer_xbc", "mamba.in_proj"},
    {"mixer_step", "mamba.in_proj"},
    {"conv", "mamba.conv1d"},
    {"step.bias", "mamba.dt_bias"},
    {"rate", "mamba.A_log"},
    {"skip", "mamba.D"},
    {"mixer_norm", "mamba.norm"},
    {"mixer_out", "mamba.out_proj"},
    {"gate_proj", "feed_forward.gate_proj"},
    {"up_proj", "feed_forward.up_proj"},
    {"down_proj", "feed_forward.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "pre_ff_layernorm"},
};
constexpr NamePair kHfTop[] = {
    {"embed", "model.embed_tokens"}, {"final_norm", "model.final_layernorm"}, {"lm_head", "lm_head"}};
constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"mixer_z", "ssm_in"},
    {"mixer_xbc", "ssm_in"},
    {"mixer_step", "ssm_in"},
    {"conv", "ssm_conv1d"},
    {"step", "ssm_dt"},
    {"rate", "ssm_a"},
    {"skip", "ssm_d"},
    {"mixer_norm", "ssm_norm"},
    {"mixer_out", "ssm_out"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    // Its tensor has no suffix.
    {"feed_forward_norm.weight", "ffn_norm"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTop, {}, kTiedHead}; }
WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, {}}; }

}  // namespace

const Family kFalconH1Family = {"falcon_h1",           "FalconH1ForCausalLM", "falcon_h1", "falcon-h1",
                                falcon_h1_from_config, falcon_h1_from_gguf,   hf_names,    gguf_names};

}  // namespace headrace
