// Nemotron-H and Nemotron 3: every layer is one block, a Mamba-2 layer, attention without rotation, a feed-forward or
// experts, none of them with a gate. Reference: transformers models/nemotron_h.
#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias", "attention_head_dim", "conv_kernel", "hybrid_override_pattern", "layer_norm_epsilon",
    "layer_types", "layers_block_type", "mamba_head_dim", "mamba_hidden_act", "mamba_num_heads", "mamba_proj_bias",
    "mlp_bias", "mlp_hidden_act", "moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size",
    "n_group", "n_groups", "n_routed_experts", "n_shared_experts", "norm_eps", "norm_topk_prob", "num_experts_per_tok",
    "routed_scaling_factor", "sliding_window", "ssm_state_size", "time_step_limit", "topk_group", "use_bias",
    "use_conv_bias",
    // Of extra layers that predict tokens further ahead.
    "mtp_hybrid_override_pattern", "mtp_layers_block_type",
    // Initial values of training, and a factor of which the heads of a Mamba layer are the product.
    "expand", "rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank",
    // How it is computed, and the precision of sums and states, which is float32 here.
    "chunk_size", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "residual_in_fp32", "use_mamba_kernels"};

Status refuse_other_values(const ConfigReader& config, int64_t head_dim) {
  const std::pair<const char*, nlohmann::json> kOnly[] = {
      {"attention_bias", false},  {"attention_head_dim", head_dim}, {"mamba_hidden_act", "silu"},
      {"mamba_proj_bias", false}, {"moe_latent_size", nullptr},     {"sliding_window", nullptr},
  };
  for (const auto& [key, value] : kOnly) HEADRACE_RETURN_IF_ERROR(config.only(key, value));
  return {};
}

// One of "linear_attention", "full_attention", "mlp", "moe" for each layer.
Result<std::vector<std::string>> read_blocks(const ConfigReader& config) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string pattern, config.text_or("hybrid_override_pattern", ""));
  std::vector<std::string> blocks;
  for (const char* key : {"layers_block_type", "layer_types"}) {
    HEADRACE_ASSIGN_OR_RETURN(blocks, config.texts(key));
    if (!blocks.empty()) return blocks;
  }
  for (const char letter : pattern) {
    if (letter != 'M' && letter != '*' && letter != '-' && letter != 'E') {
      return unsupported(config.place_of("hybrid_override_pattern"), "unknown letter '{}'", letter);
    }
    blocks.emplace_back(letter == 'M'   ? "linear_attention"
                        : letter == '*' ? "full_attention"
                        : letter == '-' ? "mlp"
                                        : "moe");
  }
  if (blocks.empty()) return malformed(config.place_of("layers_block_type"), "missing");
  return blocks;
}

struct Blocks {
  Mamba2 mamba;
  GqaAttention attention;
  DenseFeedForward dense;
  MixtureOfExperts experts;
};

Status read_mamba(const ConfigReader& config, Mamba2& mamba) {
  mamba = {.num_heads = 128, .head_dim = 64, .state_size = 128, .num_groups = 8, .kernel = 4, .conv_bias = true};
  const Mamba2Keys keys{"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size",
                        "conv_kernel",     "use_conv_bias",  "use_bias"};
  HEADRACE_RETURN_IF_ERROR(read_mamba2(config, keys, mamba));
  // As in the makers' own code; the class in transformers has time_step_min for the lower bound.
  return read_step_limits(config, mamba);
}

Status read_attention(const ConfigReader& config, GqaAttention& attention) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("num_attention_heads", 1, 1 << 14, 32));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kv_heads, config.integer_or("num_key_value_heads", 1, heads, 8));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t head_dim, config.integer_or("head_dim", 1, 1 << 12, 128));
  HEADRACE_RETURN_IF_ERROR(refuse_other_values(config, head_dim));
  if (heads % kv_heads != 0) {
    return malformed(config.place_of("num_key_value_heads"), "{} heads are no multiple of {}", heads, kv_heads);
  }
  attention.num_heads = static_cast<int32_t>(heads);
  attention.num_kv_heads = static_cast<int32_t>(kv_heads);
  attention.head_dim = static_cast<int32_t>(head_dim);
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return {};
}

Status read_feed_forwards(const ConfigReader& config, Blocks& blocks) {
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "mlp_hidden_act", "relu2"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t width, config.integer_or("intermediate_size", 1, 1 << 22, 21504));
  blocks.dense.intermediate_size = static_cast<int32_t>(width);
  blocks.dense.gated = false;
  blocks.dense.activation = activation;
  HEADRACE_ASSIGN_OR_RETURN(blocks.dense.bias, config.boolean_or("mlp_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared,
                            config.integer_or("moe_shared_expert_intermediate_size", 1, 1 << 22, 7688));
  HEADRACE_ASSIGN_OR_RETURN(blocks.experts, read_grouped_experts(config, {8, 2, 7688, 1}));
  blocks.experts.gated = false;
  blocks.experts.activation = activation;
  blocks.experts.shared_intermediate_size = static_cast<int32_t>(shared);
  return {};
}

Status set_block(const ConfigReader& config, const std::string& name, const Blocks& blocks, LayerSpec& layer) {
  if (name == "linear_attention" || name == "mamba") {
    layer.attention = blocks.mamba;
  } else if (name == "full_attention" || name == "attention") {
    layer.attention = blocks.attention;
  } else if (name == "mlp") {
    layer.feed_forward = blocks.dense;
  } else if (name == "moe") {
    // Of these the shared feed-forward alone would have one.
    HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
    layer.feed_forward = blocks.experts;
  } else {
    return unsupported(config.place_of("layers_block_type"), "unknown block '{}'", name);
  }
  layer.feed_forward_norm = name == "mlp" || name == "moe";
  return {};
}

Result<ModelSpec> nemotron_h_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_blocks(config));
  const auto num_layers = static_cast<int64_t>(names.size());
  HEADRACE_RETURN_IF_ERROR(config.only("num_hidden_layers", num_layers));
  HEADRACE_ASSIGN_OR_RETURN(
      ModelSpec spec, read_base_config(config, {131072, 4096, num_layers, 4096, "layer_norm_epsilon", 1e-5, false}));
  spec.architecture = "nemotron_h";
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.positive_or("layer_norm_epsilon", 1e-5));
  HEADRACE_RETURN_IF_ERROR(config.only("norm_eps", eps));  // another name in the makers' files
  Blocks blocks;
  HEADRACE_RETURN_IF_ERROR(read_mamba(config, blocks.mamba));
  HEADRACE_RETURN_IF_ERROR(read_attention(config, blocks.attention));
  HEADRACE_RETURN_IF_ERROR(read_feed_forwards(config, blocks));
  for (size_t i = 0; i < names.size(); ++i) {
    HEADRACE_RETURN_IF_ERROR(set_block(config, names[i], blocks, spec.layers[i]));
  }
  return spec;
}

// What a layer is shows in its tensors.
Result<ModelSpec> nemotron_h_from_gguf(const GgufReader& gguf) {
  constexpr std::string_view kMoreKeys[] = {"attention.layer_norm_epsilon"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, hybrid_gguf_keys(kMoreKeys)));
  spec.architecture = "nemotron_h";
  HEADRACE_ASSIGN_OR_RETURN(const Mamba2 mamba, read_gguf_mamba2(gguf));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads, read_gguf_kv_heads(gguf, spec));
  bool any_experts = false;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const bool experts = gguf.file().find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr;
    const int32_t width = gguf_feed_forward_size(gguf, i);
    any_experts = any_experts || experts;
    layer.feed_forward_norm = experts || width > 0;
    if (kv_heads[i] > 0) {
      HEADRACE_ASSIGN_OR_RETURN(GqaAttention attention, read_gguf_attention(gguf, spec, kv_heads[i]));
      attention.rope = RopeSpec();
      layer.attention = attention;
    } else if (width > 0) {
      DenseFeedForward feed_forward;
      feed_forward.intermediate_size = width;
      feed_forward.gated = false;
      feed_forward.activation = Activation::kRelu2;
      layer.feed_forward = feed_forward;
    } else if (!experts) {
      layer.attention = mamba;
    }
  }
  MixtureOfExperts moe;
  moe.gated = false;
  moe.activation = Activation::kRelu2;
  moe.router.score = RouterScore::kSigmoid;
  moe.router.normalize = true;
  moe.router.sum_floor = 1e-20f;
  if (any_experts) HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  return spec;
}

constexpr NamePair kHfLayer[] = {
    {"q_proj", "mixer.q_proj"},
    {"k_proj", "mixer.k_proj"},
    {"v_proj", "mixer.v_proj"},
    {"o_proj", "mixer.o_proj"},
    {"mixer_z", "mixer.in_proj"},
    {"mixer_xbc", "mixer.in_proj"},
    {"mixer_step", "mixer.in_proj"},
    {"conv", "mixer.conv1d"},
    {"step.bias", "mixer.dt_bias"},
    {"rate", "mixer.A_log"},
    {"skip", "mixer.D"},
    {"mixer_norm", "mixer.norm"},
    {"mixer_out", "mixer.out_proj"},
    {"up_proj", "mixer.up_proj"},
    {"down_proj", "mixer.down_proj"},
    {"router", "mixer.gate"},
    {"router.correction", "mixer.gate.e_score_correction_bias"},
    {"experts.*.up_proj", "mixer.experts.*.up_proj"},
    {"experts.*.down_proj", "mixer.experts.*.down_proj"},
    {"shared.up_proj", "mixer.shared_experts.up_proj"},
    {"shared.down_proj", "mixer.shared_experts.down_proj"},
    {"attention_norm", "norm"},
    {"feed_forward_norm", "norm"},
};
constexpr NamePair kHfTop[] = {
    {"embed", "backbone.embeddings"}, {"final_norm", "backbone.norm_f"}, {"lm_head", "lm_head"}};
constexpr std::string_view kAhead[] = {"mtp."};  // layers that predict tokens further ahead
WeightNaming hf_names(const TensorFile&) { return {"backbone.layers.", kHfLayer, kHfTop, kAhead, kTiedHead}; }

}  // namespace

const Family kNemotronHFamily = {"nemotron_h",           "NemotronHForCausalLM", "nemotron_h", "nemotron_h",
                                 nemotron_h_from_config, nemotron_h_from_gguf,   hf_names,     hybrid_gguf_names};
// With experts GGUF has another name.
const Family kNemotronHMoeFamily = {"nemotron_h",     "", "", "nemotron_h_moe", nullptr, nemotron_h_from_gguf, nullptr,
                                    hybrid_gguf_names};

}  // namespace headrace
