// Qwen3.5 (text, dense) and the parts that Qwen3-Next shares with it: gated delta layers, and attention with an output
// gate in every fourth. Reference: transformers models/qwen3_5, models/qwen3_next. Norm weights are stored minus one,
// but for the norm of a delta layer's output.
#include <algorithm>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

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

// The attention and delta layers.
Status set_layers(const ConfigReader& config, ModelSpec& spec) {
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
  return {};
}

constexpr std::string_view kDeltaKeys[] = {
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "full_attention_interval", "layer_types", "attention_bias", "attn_output_gate",
    // Layers that predict tokens further ahead, and the type of the recurrent state, which is float32 here.
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"};
constexpr std::string_view kNextKeys[] = {
    "num_experts",    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",       "use_sliding_window"};

Status check_delta_keys(const ConfigReader& config, std::span<const std::string_view> more) {
  std::vector<std::string_view> own(std::begin(kDeltaKeys), std::end(kDeltaKeys));
  own.insert(own.end(), more.begin(), more.end());
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, own));
  HEADRACE_RETURN_IF_ERROR(config.only("use_sliding_window", false));
  return config.only("attn_output_gate", true);
}

Result<ModelSpec> qwen3_5_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_delta_keys(config, {}));
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
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec));
  spec.architecture = "qwen3_5";
  return spec;
}

Result<ModelSpec> qwen3_next_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_delta_keys(config, kNextKeys));
  DenseDefaults defaults;
  defaults.vocab_size = 151936;
  defaults.hidden_size = 2048;
  defaults.intermediate_size = 5632;
  defaults.num_layers = 48;
  defaults.num_heads = 16;
  defaults.num_kv_heads = 2;
  defaults.head_dim = 256;
  defaults.max_position_embeddings = 32768;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "qwen3_next";
  MixtureOfExperts moe;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_experts", 1, 1 << 14, 512));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, config.integer_or("num_experts_per_tok", 1, experts, 10));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("moe_intermediate_size", 1, 1 << 22, 512));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared,
                            config.integer_or("shared_expert_intermediate_size", 1, 1 << 22, 512));
  HEADRACE_ASSIGN_OR_RETURN(moe.router.normalize, config.boolean_or("norm_topk_prob", true));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("decoder_sparse_step", 1, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> dense_layers, config.integers("mlp_only_layers"));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(used);
  moe.intermediate_size = static_cast<int32_t>(inner);
  moe.shared_intermediate_size = static_cast<int32_t>(shared);
  moe.shared_gate = true;
  set_experts(spec, moe, [&](size_t layer) {
    const auto index = static_cast<int64_t>(layer);
    return (index + 1) % step == 0 && std::find(dense_layers.begin(), dense_layers.end(), index) == dense_layers.end();
  });
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec));
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj", TensorForm::kRows, true},
    {"q_gate", "self_attn.q_proj", TensorForm::kRows, true},
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

constexpr NamePair kNextLayer[] = {
    {"q_proj", "self_attn.q_proj", TensorForm::kRows, true},
    {"q_gate", "self_attn.q_proj", TensorForm::kRows, true},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"mixer_q", "linear_attn.in_proj_qkvz", TensorForm::kRows, true},
    {"mixer_k", "linear_attn.in_proj_qkvz", TensorForm::kRows, true},
    {"mixer_v", "linear_attn.in_proj_qkvz", TensorForm::kRows, true},
    {"mixer_z", "linear_attn.in_proj_qkvz", TensorForm::kRows, true},
    {"mixer_beta", "linear_attn.in_proj_ba", TensorForm::kRows, true},
    {"mixer_alpha", "linear_attn.in_proj_ba", TensorForm::kRows, true},
    {"conv", "linear_attn.conv1d"},
    {"step.bias", "linear_attn.dt_bias"},
    {"rate", "linear_attn.A_log"},
    {"mixer_norm", "linear_attn.norm"},
    {"mixer_out", "linear_attn.out_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"router", "mlp.gate"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
    {"shared.gate_proj", "mlp.shared_expert.gate_proj"},
    {"shared.up_proj", "mlp.shared_expert.up_proj"},
    {"shared.down_proj", "mlp.shared_expert.down_proj"},
    {"shared.router", "mlp.shared_expert_gate"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }
WeightNaming next_names(const TensorFile&) { return {"model.layers.", kNextLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kQwen3NextFamily = {
    "qwen3_next", "Qwen3NextForCausalLM", "qwen3_next", "", qwen3_next_from_config, nullptr, next_names, nullptr};
const Family kQwen35Family = {"qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text", "", qwen3_5_from_config, nullptr, names,
                              nullptr};

}  // namespace headrace
