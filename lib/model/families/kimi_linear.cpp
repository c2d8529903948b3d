// Kimi Linear: delta attention with a decay per channel, latent attention without rotation in every fourth layer,
// experts in groups with shared ones. Reference: transformers models/kimi_linear.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/deepseek.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias",     "first_k_dense_replace", "kv_lora_rank",
                                         "layer_types",        "linear_attn_config",    "linear_conv_kernel_dim",
                                         "linear_head_dim",    "linear_num_heads",      "mla_use_nope",
                                         "mlp_layer_types",    "model_max_length",      "moe_intermediate_size",
                                         "moe_layer_freq",     "moe_renormalize",       "moe_router_activation_func",
                                         "num_expert_group",   "num_experts",           "num_experts_per_token",
                                         "num_shared_experts", "q_lora_rank",           "qk_head_dim",
                                         "qk_nope_head_dim",   "qk_rope_head_dim",      "routed_scaling_factor",
                                         "topk_group",         "use_grouped_topk",      "v_head_dim"};

Status refuse_other_values(const ConfigReader& config) {
  const std::pair<const char*, nlohmann::json> kOnly[] = {
      {"hidden_act", "silu"},     {"mla_use_nope", true},
      {"moe_layer_freq", 1},      {"moe_router_activation_func", "sigmoid"},
      {"use_grouped_topk", true},
  };
  for (const auto& [key, value] : kOnly) HEADRACE_RETURN_IF_ERROR(config.only(key, value));
  return {};
}

// Sizes stand in linear_attn_config, or under names of their own in configs that transformers wrote.
Result<KimiDelta> read_kimi_delta(const ConfigReader& config, const ModelSpec& spec) {
  KimiDelta delta;
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("linear_attn_config"));
  HEADRACE_RETURN_IF_ERROR(nested.check_known(std::to_array<std::string_view>(
      {"full_attn_layers", "head_dim", "kda_layers", "num_heads", "short_conv_kernel_size"})));
  const auto read = [&](const char* key, const char* own_key, int64_t low, int64_t high, int64_t fallback,
                        int32_t& size) -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t own, config.integer_or(own_key, low, high, fallback));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, nested.integer_or(key, low, high, own));
    size = static_cast<int32_t>(value);
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(read("num_heads", "linear_num_heads", 1, 1 << 14, 32, delta.num_heads));
  HEADRACE_RETURN_IF_ERROR(read("head_dim", "linear_head_dim", 1, 1 << 12, 128, delta.head_dim));
  HEADRACE_RETURN_IF_ERROR(
      read("short_conv_kernel_size", "linear_conv_kernel_dim", 2, kMostConvKernel, 4, delta.kernel));
  delta.norm_eps = spec.norm_eps;
  return delta;
}

// layer_types, or lists of layers counted from 1, or every fourth.
Result<std::vector<bool>> read_kimi_attending(const ConfigReader& config, size_t num_layers) {
  if (config.has("layer_types")) return read_attending(config, num_layers);
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("linear_attn_config"));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> full, nested.integers("full_attn_layers"));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> linear, nested.integers("kda_layers"));
  std::vector<bool> attends(num_layers);
  if (full.empty() && linear.empty()) {
    for (size_t i = 4; i < num_layers; i += 4) attends[i] = true;
    return attends;
  }
  std::vector<int64_t> all(full);
  all.insert(all.end(), linear.begin(), linear.end());
  std::sort(all.begin(), all.end());
  std::vector<int64_t> layers(num_layers);
  std::iota(layers.begin(), layers.end(), 1);
  if (all != layers) {
    return malformed(nested.place_of("full_attn_layers"), "with kda_layers it does not name each layer once");
  }
  for (const int64_t layer : full) attends[static_cast<size_t>(layer - 1)] = true;
  return attends;
}

Result<ModelSpec> kimi_linear_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(refuse_other_values(config));
  DenseDefaults defaults{163840, 2304, 9216, 27, 32, -1};
  defaults.head_dim = 64;  // of a part of the keys; unused
  defaults.max_position_embeddings = 1 << 20;
  defaults.norm_eps = 1e-5;
  defaults.keys.max_position_embeddings = "model_max_length";
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "kimi_linear";
  HEADRACE_ASSIGN_OR_RETURN(LatentAttention latent, read_latent(config, {.q_rank = 0}, spec.max_position_embeddings));
  latent.rope = RopeSpec();
  latent.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(latent.nope_dim + latent.rope_dim)));
  HEADRACE_ASSIGN_OR_RETURN(const KimiDelta delta, read_kimi_delta(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> attends, read_kimi_attending(config, spec.layers.size()));
  const GroupedExpertKeys keys{"num_experts", "num_experts_per_token", "num_expert_group", "num_shared_experts",
                               "moe_renormalize"};
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe,
                            read_grouped_experts(config, {256, 8, 1024, 1, 1, 1, 2.446}, keys));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("first_k_dense_replace", 0, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                            read_sparse_layers(config, spec.layers.size(), static_cast<size_t>(num_dense)));
  set_experts(spec, moe, [&](size_t layer) { return sparse[layer]; });
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].attention = attends[i] ? AttentionSpec(latent) : AttentionSpec(delta);
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"mixer_q", "self_attn.q_proj"},
    {"mixer_k", "self_attn.k_proj"},
    {"mixer_v", "self_attn.v_proj"},
    {"conv_q", "self_attn.q_conv1d"},
    {"conv_k", "self_attn.k_conv1d"},
    {"conv_v", "self_attn.v_conv1d"},
    {"decay_down", "self_attn.f_a_proj"},
    {"decay_up", "self_attn.f_b_proj"},
    {"mixer_beta", "self_attn.b_proj"},
    {"gate_down", "self_attn.g_a_proj"},
    {"gate_up", "self_attn.g_b_proj"},
    {"step.bias", "self_attn.dt_bias"},
    {"rate", "self_attn.A_log"},
    {"mixer_norm", "self_attn.o_norm"},
    {"mixer_out", "self_attn.o_proj"},
    {"q_down", "self_attn.q_a_proj"},
    {"q_latent_norm", "self_attn.q_a_layernorm"},
    {"q_proj", "self_attn.q_b_proj"},
    {"q_proj", "self_attn.q_proj"},  // where queries have no latent
    {"latent", "self_attn.kv_a_proj_with_mqa"},
    {"k_rope", "self_attn.kv_a_proj_with_mqa"},
    {"latent_norm", "self_attn.kv_a_layernorm"},
    {"heads.*.k_up", "self_attn.kv_b_proj", TensorForm::kSwapped},
    {"heads.*.v_up", "self_attn.kv_b_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "block_sparse_moe.gate"},
    {"router.correction", "block_sparse_moe.gate.e_score_correction_bias"},
    {"experts.*.gate_proj", "block_sparse_moe.experts.*.w1"},
    {"experts.*.up_proj", "block_sparse_moe.experts.*.w3"},
    {"experts.*.down_proj", "block_sparse_moe.experts.*.w2"},
    {"shared.gate_proj", "block_sparse_moe.shared_experts.gate_proj"},
    {"shared.up_proj", "block_sparse_moe.shared_experts.up_proj"},
    {"shared.down_proj", "block_sparse_moe.shared_experts.down_proj"},
};

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead, true}; }

}  // namespace

const Family kKimiLinearFamily = {
    "kimi_linear", "KimiLinearForCausalLM", "kimi_linear", "", kimi_linear_from_config, nullptr, names, nullptr};

}  // namespace headrace
