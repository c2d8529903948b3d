// Hunyuan 3: Qwen3's attention, sigmoid scores with a correction and a shared expert.
// Reference: transformers models/hy_v3.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",          "mlp_bias",           "mlp_layer_types",       "moe_intermediate_size", "num_experts",
    "num_experts_per_tok",     "num_shared_experts", "router_scaling_factor",
    "enable_moe_fp32_combine",  // sums are float32 here in any case
};

MixtureOfExperts router_of_family() {
  MixtureOfExperts moe;
  moe.router.score = RouterScore::kSigmoid;
  moe.router.correction = true;
  moe.router.normalize = true;
  moe.router.sum_floor = 1e-20f;
  return moe;
}

Result<ModelSpec> hy_v3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "hy_v3";
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 11158840.0, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  MixtureOfExperts moe = router_of_family();
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_experts", 1, 1 << 14, 192));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, 8));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("num_shared_experts", 0, 256, 1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("moe_intermediate_size", 1, 1 << 22, 1536));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, config.number_or("router_scaling_factor", 2.826));
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.scale = static_cast<float>(scale);
  moe.intermediate_size = static_cast<int32_t>(inner);
  moe.shared_intermediate_size = static_cast<int32_t>(shared * inner);
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = *rope;
    gqa(layer).qk_norm = true;
    gqa(layer).qkv_bias = gqa(layer).output_bias = bias;
    dense(layer).activation = moe.activation;
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> sparse, read_sparse_layers(config, spec.layers.size(), 1));
  set_experts(spec, moe, [&](size_t layer) { return sparse[layer]; });
  return spec;
}

Result<ModelSpec> hy_v3_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.experts = true, .more_keys = moe_gguf_keys()}));
  spec.architecture = "hy_v3";
  for (LayerSpec& layer : spec.layers) gqa(layer).qk_norm = true;
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, router_of_family()));
  return spec;
}

constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.router.gate"},
    {"router.correction", "mlp.expert_bias"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
    {"shared.gate_proj", "mlp.shared_mlp.gate_proj"},
    {"shared.up_proj", "mlp.shared_mlp.up_proj"},
    {"shared.down_proj", "mlp.shared_mlp.down_proj"},
};
WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTopNames, {}, kTiedHead, true}; }

}  // namespace

const Family kHyV3Family = {"hy_v3",           "HYV3ForCausalLM", "hy_v3",  "hy_v3",
                            hy_v3_from_config, hy_v3_from_gguf,   hf_names, moe_gguf_names};

}  // namespace headrace
