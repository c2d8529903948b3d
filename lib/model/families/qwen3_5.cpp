// Qwen3.5 (text), dense and with experts, and Qwen3-Next: gated delta layers, and attention with an output gate in every
// fourth. Reference: transformers models/qwen3_5, qwen3_5_moe, qwen3_next. Norm weights are stored minus one, but for the
// norm of a delta layer's output.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

// The attention and delta layers.
Status set_layers(const ConfigReader& config, ModelSpec& spec) {
  spec.norm_weight_offset = 1.0f;
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 0.25));
  const GatedDelta defaults{
      .num_heads = 32, .num_key_heads = 16, .key_dim = 128, .value_dim = 128, .kernel = 4, .norm_eps = spec.norm_eps};
  HEADRACE_ASSIGN_OR_RETURN(const GatedDelta delta, read_delta(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t period, config.integer_or("full_attention_interval", 1, 4096, 4));
  std::vector<bool> attends;
  for (size_t i = 0; i < spec.layers.size(); ++i) attends.push_back(static_cast<int64_t>(i + 1) % period == 0);
  if (config.has("layer_types")) {
    HEADRACE_ASSIGN_OR_RETURN(attends, read_attending(config, spec.layers.size()));
  }
  for (size_t i = 0; i < attends.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (!attends[i]) {
      layer.attention = delta;
      continue;
    }
    gqa(layer).rope = rope;
    gqa(layer).qk_norm = true;
    gqa(layer).output_gate = true;
  }
  return {};
}

constexpr std::string_view kDeltaKeys[] = {
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "full_attention_interval", "layer_types", "attention_bias", "attn_output_gate",
    // Layers that predict tokens further ahead, and the type of the recurrent state, which is float32 here.
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype",
    // Of models with experts.
    "mlp_only_layers",
    // Of the norm of a delta layer's output.
    "output_gate_type"};
constexpr std::string_view kMoeKeys[] = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                         "shared_expert_intermediate_size"};
constexpr std::string_view kNextKeys[] = {
    "num_experts",    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "use_sliding_window"};

Status check_delta_keys(const ConfigReader& config, std::span<const std::string_view> more) {
  std::vector<std::string_view> own(std::begin(kDeltaKeys), std::end(kDeltaKeys));
  own.insert(own.end(), more.begin(), more.end());
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, own));
  HEADRACE_RETURN_IF_ERROR(config.only("use_sliding_window", false));
  HEADRACE_RETURN_IF_ERROR(config.only("output_gate_type", "swish"));
  return config.only("attn_output_gate", true);
}

Result<ModelSpec> qwen3_5_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_delta_keys(config, {}));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_only_layers", nlohmann::json::array()));
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

// The experts, whose router is a softmax over the chosen ones, and the feed-forward beside them.
Result<MixtureOfExperts> read_experts(const ConfigReader& config, int64_t default_experts, int64_t default_top_k) {
  MixtureOfExperts moe;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_experts", 1, 1 << 14, default_experts));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, config.integer_or("num_experts_per_tok", 1, experts, default_top_k));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("moe_intermediate_size", 1, 1 << 22, 512));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared,
                            config.integer_or("shared_expert_intermediate_size", 1, 1 << 22, 512));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(used);
  moe.router.normalize = true;
  moe.intermediate_size = static_cast<int32_t>(inner);
  moe.shared_intermediate_size = static_cast<int32_t>(shared);
  moe.shared_gate = true;
  return moe;
}

Result<ModelSpec> qwen3_5_moe_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_delta_keys(config, kMoeKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_only_layers", nlohmann::json::array()));
  DenseDefaults defaults;
  defaults.vocab_size = 248320;
  defaults.hidden_size = 2048;
  defaults.intermediate_size = 512;  // no layer is dense
  defaults.num_layers = 40;
  defaults.num_heads = 16;
  defaults.num_kv_heads = 2;
  defaults.head_dim = 256;
  defaults.max_position_embeddings = 32768;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_experts(config, 256, 8));
  set_experts(spec, moe, [](size_t) { return true; });
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec));
  spec.architecture = "qwen3_5_moe";
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
  HEADRACE_ASSIGN_OR_RETURN(MixtureOfExperts moe, read_experts(config, 512, 10));
  HEADRACE_ASSIGN_OR_RETURN(moe.router.normalize, config.boolean_or("norm_topk_prob", true));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("decoder_sparse_step", 1, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> dense_layers, config.integers("mlp_only_layers"));
  set_experts(spec, moe, [&](size_t layer) {
    const auto index = static_cast<int64_t>(layer);
    return (index + 1) % step == 0 && std::find(dense_layers.begin(), dense_layers.end(), index) == dense_layers.end();
  });
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec));
  return spec;
}

constexpr TensorForm kRows = TensorForm::kRows;
constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj", kRows, true},
    {"q_gate", "self_attn.q_proj", kRows, true},
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
    // Of Qwen3-Next, head by head.
    {"mixer_q", "linear_attn.in_proj_qkvz", kRows, true},
    {"mixer_k", "linear_attn.in_proj_qkvz", kRows, true},
    {"mixer_v", "linear_attn.in_proj_qkvz", kRows, true},
    {"mixer_z", "linear_attn.in_proj_qkvz", kRows, true},
    {"mixer_beta", "linear_attn.in_proj_ba", kRows, true},
    {"mixer_alpha", "linear_attn.in_proj_ba", kRows, true},
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

constexpr std::string_view kAhead[] = {"mtp."};  // layers that predict tokens further ahead

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, kAhead, kTiedHead}; }

}  // namespace

const Family kQwen35Family = {"qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text", "", qwen3_5_from_config, nullptr, names,
                              nullptr};
const Family kQwen35MoeFamily = {
    "qwen3_5_moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "", qwen3_5_moe_from_config, nullptr, names, nullptr};
const Family kQwen3NextFamily = {
    "qwen3_next", "Qwen3NextForCausalLM", "qwen3_next", "", qwen3_next_from_config, nullptr, names, nullptr};

}  // namespace headrace
