// MiniMax-Text-01: lightning attention, softmax attention in some layers, experts in all. The stream goes on from the
// normalised input of a block, both sides of the sum with factors. Reference: transformers models/minimax.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr float kOutputNormEps = 1e-6f;  // of lightning attention, whatever that of the others is

constexpr std::string_view kOwnKeys[] = {"full_attn_alpha_factor", "full_attn_beta_factor", "layer_types",
                                         "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor",
                                         "mlp_beta_factor", "num_experts_per_tok", "num_local_experts",
                                         "sliding_window",
                                         // How the recurrence is computed.
                                         "block_size"};

// alpha of the stream and beta of what the block adds.
Result<ResidualSpec> read_residual(const ConfigReader& config, const std::string& block) {
  HEADRACE_ASSIGN_OR_RETURN(const double alpha, config.number_or(block + "_alpha_factor", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double beta, config.number_or(block + "_beta_factor", 1.0));
  return ResidualSpec{true, static_cast<float>(alpha), static_cast<float>(beta)};
}

// Heads forget faster the lower their number, and layers the lower theirs.
LightningAttention lightning(int32_t num_heads, int32_t head_dim, size_t layer, size_t num_layers) {
  LightningAttention out;
  out.num_heads = num_heads;
  out.head_dim = head_dim;
  const double share = static_cast<double>(layer) / (static_cast<double>(num_layers) - 1.0 + 1e-5);
  out.slope_factor = static_cast<float>(1.0 - share + 1e-5);
  out.norm_eps = kOutputNormEps;
  return out;
}

Result<ModelSpec> minimax_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("sliding_window", nullptr));
  DenseDefaults defaults{32000, 4096, 14336, 32, 32, 8};
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "minimax";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 1000000.0));
  HEADRACE_ASSIGN_OR_RETURN(const ResidualSpec full, read_residual(config, "full_attn"));
  HEADRACE_ASSIGN_OR_RETURN(const ResidualSpec linear, read_residual(config, "linear_attn"));
  HEADRACE_ASSIGN_OR_RETURN(const ResidualSpec feed_forward, read_residual(config, "mlp"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 1, 1 << 14, 8));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, 2));
  MixtureOfExperts moe;
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.normalize = true;
  moe.intermediate_size = dense(spec.layers[0]).intermediate_size;
  set_experts(spec, moe, [](size_t) { return true; });
  std::vector<bool> attends(spec.layers.size());
  for (size_t i = 0; i < attends.size(); i += 2) attends[i] = true;
  if (config.has("layer_types")) {
    HEADRACE_ASSIGN_OR_RETURN(attends, read_attending(config, spec.layers.size()));
  }
  for (size_t i = 0; i < attends.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.attention_residual = attends[i] ? full : linear;
    layer.feed_forward_residual = feed_forward;
    if (attends[i]) {
      gqa(layer).rope = rope;
    } else {
      layer.attention = lightning(gqa(layer).num_heads, gqa(layer).head_dim, i, attends.size());
    }
  }
  return spec;
}

constexpr TensorForm kRows = TensorForm::kRows;
constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"mixer_q", "self_attn.qkv_proj", kRows, true},
    {"mixer_k", "self_attn.qkv_proj", kRows, true},
    {"mixer_v", "self_attn.qkv_proj", kRows, true},
    {"mixer_gate", "self_attn.output_gate"},
    {"mixer_norm", "self_attn.norm"},
    {"mixer_out", "self_attn.out_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "block_sparse_moe.gate"},
    {"experts.*.gate_proj", "block_sparse_moe.experts.*.w1"},
    {"experts.*.up_proj", "block_sparse_moe.experts.*.w3"},
    {"experts.*.down_proj", "block_sparse_moe.experts.*.w2"},
};
// The others follow from the number of heads and the layer.
constexpr std::string_view kIgnored[] = {"lm_head.weight", "self_attn.slope_rate", "self_attn.query_decay",
                                         "self_attn.key_decay", "self_attn.diagonal_decay"};

WeightNaming names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kIgnored}; }

}  // namespace

const Family kMiniMaxFamily = {"minimax", "MiniMaxForCausalLM", "minimax", "", minimax_from_config, nullptr, names,
                               nullptr};

}  // namespace headrace
