// MiniMax-M2: norms over all heads of q and of k, part of each head rotates, sigmoid scores with a correction.
// Reference: transformers models/minimax_m2.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "num_local_experts",
    "num_experts_per_tok",
    "rotary_dim",
    "use_qk_norm",
    "qk_norm_type",
    "scoring_func",
    "use_routing_bias",
    "shared_intermediate_size",
    "attn_type_list",
    "sliding_window",
    // Of blocks that these models do not have: shared experts, linear attention, extra layers.
    "shared_moe_mode",
    "mlp_intermediate_size",
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mtp_transformer_layers",
    "num_mtp_modules",
};

Status refuse_other_values(const ConfigReader& config) {
  const std::pair<const char*, nlohmann::json> kOnly[] = {
      {"use_qk_norm", true},       {"qk_norm_type", "per_layer"},          {"scoring_func", "sigmoid"},
      {"use_routing_bias", true},  {"shared_intermediate_size", 0},        {"sliding_window", nullptr},
      {"layernorm_mlp_beta", 1.0}, {"layernorm_full_attention_beta", 1.0},
  };
  for (const auto& [key, value] : kOnly) HEADRACE_RETURN_IF_ERROR(config.only(key, value));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> kinds, config.integers("attn_type_list"));
  for (const int64_t kind : kinds) {
    if (kind != 1) return unsupported(config.place_of("attn_type_list"), "only full attention (1) is known here");
  }
  return {};
}

Result<ModelSpec> minimax_m2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(refuse_other_values(config));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 196608;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "minimax_m2";
  const int32_t head_dim = gqa(spec.layers[0]).head_dim;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rotary_dim, config.integer_or("rotary_dim", 2, head_dim, head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope,
                            read_rotation(config, spec, 5e6, static_cast<double>(rotary_dim) / head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 1, 1 << 14, 256));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, 8));
  MixtureOfExperts moe;
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.score = RouterScore::kSigmoid;
  moe.router.correction = true;
  moe.router.normalize = true;
  moe.intermediate_size = dense(spec.layers[0]).intermediate_size;
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).qk_norm = true;
    gqa(layer).qk_norm_kind = QkNormKind::kWhole;
  }
  set_experts(spec, moe, [](size_t) { return true; });
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "block_sparse_moe.gate"},
    {"router.correction", "block_sparse_moe.e_score_correction_bias"},
    {"experts.*.gate_proj", "block_sparse_moe.experts.*.w1"},
    {"experts.*.up_proj", "block_sparse_moe.experts.*.w3"},
    {"experts.*.down_proj", "block_sparse_moe.experts.*.w2"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kMiniMaxM2Family = {
    "minimax_m2", "MiniMaxM2ForCausalLM", "minimax_m2", "", minimax_m2_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
