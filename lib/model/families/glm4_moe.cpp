// GLM-4.5 and 4.6: half of each head rotates, norms on q and k where the config says so, DeepSeek-V3's router.
// Reference: transformers models/glm4_moe.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias", "first_k_dense_replace", "moe_intermediate_size",
    "n_group",        "n_routed_experts",      "n_shared_experts",
    "norm_topk_prob", "num_experts_per_tok",   "routed_scaling_factor",
    "topk_group",     "use_qk_norm",
};

Result<ModelSpec> glm4_moe_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "glm4_moe";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 0.5));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const bool qk_norm, config.boolean_or("use_qk_norm", false));
  const GroupedExpertDefaults expert_defaults{128, 8, 1408, 1};
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_grouped_experts(config, expert_defaults));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).qk_norm = qk_norm;
    gqa(layer).qkv_bias = bias;
    dense(layer).activation = moe.activation;
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("first_k_dense_replace", 0, INT32_MAX, 1));
  set_experts(spec, moe, [&](size_t layer) { return static_cast<int64_t>(layer) >= num_dense; });
  return spec;
}

}  // namespace

const Family kGlm4MoeFamily = {"glm4_moe", "Glm4MoeForCausalLM", "glm4_moe", "", glm4_moe_from_config,
                               nullptr,    moe_hf_names,         nullptr};

}  // namespace headrace
