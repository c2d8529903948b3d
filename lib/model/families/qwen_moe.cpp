// Qwen2-MoE (a shared feed-forward behind a gate of its own) and Qwen3-MoE.
// Reference: transformers models/qwen2_moe, models/qwen3_moe.
#include <algorithm>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/qwen.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

// Sizes of the router, and which layers have experts.
Status read_experts(const ConfigReader& config, int64_t num_experts, int64_t top_k, int64_t intermediate_size,
                    MixtureOfExperts moe, ModelSpec& spec) {
  // The same number under either name.
  const char* const count_key = config.has("num_experts") ? "num_experts" : "num_local_experts";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or(count_key, 1, 1 << 14, num_experts));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, config.integer_or("num_experts_per_tok", 1, experts, top_k));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner,
                            config.integer_or("moe_intermediate_size", 1, 1 << 22, intermediate_size));
  HEADRACE_ASSIGN_OR_RETURN(moe.router.normalize, config.boolean_or("norm_topk_prob", false));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("decoder_sparse_step", 1, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> dense_layers, config.integers("mlp_only_layers"));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(used);
  moe.intermediate_size = static_cast<int32_t>(inner);
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  set_experts(spec, moe, [&](size_t layer) {
    const auto index = static_cast<int64_t>(layer);
    return (index + 1) % step == 0 && std::find(dense_layers.begin(), dense_layers.end(), index) == dense_layers.end();
  });
  return {};
}

constexpr std::string_view kQwen2Keys[] = {
    "num_experts",    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",       "qkv_bias",
    "layer_types",    "use_sliding_window",  "sliding_window",        "max_window_layers",
};

Result<ModelSpec> qwen2_moe_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kQwen2Keys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_sliding_window", false));
  DenseDefaults defaults;
  defaults.max_position_embeddings = 32768;
  defaults.num_kv_heads = 16;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_config(config, defaults));
  spec.architecture = "qwen2_moe";
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("qkv_bias", true));
  for (LayerSpec& layer : spec.layers) gqa(layer).qkv_bias = bias;
  MixtureOfExperts moe;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared,
                            config.integer_or("shared_expert_intermediate_size", 1, 1 << 22, 5632));
  moe.shared_intermediate_size = static_cast<int32_t>(shared);
  moe.shared_gate = true;
  HEADRACE_RETURN_IF_ERROR(read_experts(config, 60, 4, 1408, moe, spec));
  return spec;
}

constexpr std::string_view kQwen3Keys[] = {
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "attention_bias",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    // Of Qwen2-MoE, which files say they do without.
    "qkv_bias",
    "use_qk_norm",
    "shared_expert_intermediate_size",
};

Result<ModelSpec> qwen3_moe_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kQwen3Keys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_sliding_window", false));
  HEADRACE_RETURN_IF_ERROR(config.only("qkv_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("use_qk_norm", true));
  HEADRACE_RETURN_IF_ERROR(config.only("shared_expert_intermediate_size", 0));
  DenseDefaults defaults;
  defaults.max_position_embeddings = 32768;
  defaults.num_kv_heads = 4;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_config(config, defaults));
  spec.architecture = "qwen3_moe";
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).qk_norm = true;
    gqa(layer).qkv_bias = gqa(layer).output_bias = bias;
  }
  HEADRACE_RETURN_IF_ERROR(read_experts(config, 128, 8, 768, {}, spec));
  return spec;
}

Result<ModelSpec> from_gguf(const GgufReader& gguf, bool qwen3) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.experts = true, .more_keys = moe_gguf_keys()}));
  spec.architecture = qwen3 ? "qwen3_moe" : "qwen2_moe";
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
                          "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (gguf.has(key)) return unsupported(gguf.key(key), "not a parameter of {} models", gguf.architecture());
  }
  for (LayerSpec& layer : spec.layers) gqa(layer).qk_norm = qwen3;
  MixtureOfExperts moe;
  moe.router.normalize = qwen3;  // of every published Qwen3
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  return spec;
}
Result<ModelSpec> qwen2_moe_from_gguf(const GgufReader& gguf) { return from_gguf(gguf, false); }
Result<ModelSpec> qwen3_moe_from_gguf(const GgufReader& gguf) { return from_gguf(gguf, true); }

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.gate"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
    {"shared.gate_proj", "mlp.shared_expert.gate_proj"},
    {"shared.up_proj", "mlp.shared_expert.up_proj"},
    {"shared.down_proj", "mlp.shared_expert.down_proj"},
    {"shared.router", "mlp.shared_expert_gate"},
};

WeightNaming qwen2_moe_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kQwen2MoeFamily = {"qwen2_moe",           "Qwen2MoeForCausalLM", "qwen2_moe",     "qwen2moe",
                                qwen2_moe_from_config, qwen2_moe_from_gguf,   qwen2_moe_names, moe_gguf_names};
const Family kQwen3MoeFamily = {"qwen3_moe",           "Qwen3MoeForCausalLM", "qwen3_moe",  "qwen3moe",
                                qwen3_moe_from_config, qwen3_moe_from_gguf,   moe_hf_names, moe_gguf_names};

}  // namespace headrace
