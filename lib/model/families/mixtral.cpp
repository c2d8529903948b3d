// Mixtral: Mistral's attention, and eight experts of which a row visits two. In GGUF it goes by llama's name
// (llama.cpp of this folder). Reference: transformers models/mixtral.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"num_local_experts", "num_experts_per_tok", "sliding_window"};

Result<ModelSpec> mixtral_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.max_position_embeddings = 4096 * 32;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "mixtral";
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 1e6, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 1, 1 << 14, 8));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, 2));
  MixtureOfExperts moe;
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.normalize = true;
  moe.intermediate_size = dense(spec.layers[0]).intermediate_size;
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = *rope;
    gqa(layer).window = static_cast<int32_t>(window);
  }
  set_experts(spec, moe, [](size_t) { return true; });
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "block_sparse_moe.gate"},
    {"experts.*.gate_proj", "block_sparse_moe.experts.*.w1"},
    {"experts.*.up_proj", "block_sparse_moe.experts.*.w3"},
    {"experts.*.down_proj", "block_sparse_moe.experts.*.w2"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kMixtralFamily = {"mixtral", "MixtralForCausalLM", "mixtral", "", mixtral_from_config, nullptr, hf_names,
                               nullptr};

}  // namespace headrace
