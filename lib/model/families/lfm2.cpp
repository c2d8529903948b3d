// LFM2: short gated convolutions, attention in some layers, and, in LFM2-MoE, experts past the first layers.
// Reference: transformers models/lfm2, lfm2_moe.
#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

ShortConv short_conv(const ModelSpec& spec, int64_t kernel, bool bias) {
  ShortConv conv;
  conv.channels = spec.hidden_size;
  conv.kernel = static_cast<int32_t>(kernel);
  conv.bias = bias;
  return conv;
}

// The convolutions and the attention.
Status set_layers(const ConfigReader& config, ModelSpec& spec, const std::vector<std::string>& types) {
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 1000000.0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, config.integer_or("conv_L_cache", 2, kMostConvKernel, 3));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("conv_bias", false));
  for (size_t i = 0; i < types.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (types[i] == "conv") {
      layer.attention = short_conv(spec, kernel, bias);
    } else if (types[i] == "full_attention") {
      gqa(layer).rope = rope;
      gqa(layer).qk_norm = true;
    } else {
      return unsupported(config.place_of("layer_types"), "unknown layer type '{}'", types[i]);
    }
  }
  return {};
}

constexpr std::string_view kOwnKeys[] = {"norm_eps", "tie_embedding", "block_auto_adjust_ff_dim", "block_ff_dim",
                                         "block_ffn_dim_multiplier", "block_multiple_of", "conv_L_cache", "conv_bias",
                                         "layer_types", "full_attn_idxs", "block_use_swiglu", "use_pos_enc",
                                         // Initial values of training, and sizes that the class does not read.
                                         "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
                                         "conv_use_xavier_init", "block_dim", "block_norm_eps", "conv_dim",
                                         "conv_dim_out", "num_heads"};

Result<ModelSpec> lfm2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("block_use_swiglu", true));
  HEADRACE_RETURN_IF_ERROR(config.only("use_pos_enc", true));
  DenseDefaults defaults;
  defaults.vocab_size = 65536;
  defaults.hidden_size = 2560;
  defaults.intermediate_size = 12288;
  defaults.num_layers = 32;
  defaults.num_heads = 32;
  defaults.num_kv_heads = 8;
  defaults.max_position_embeddings = 128000;
  defaults.tied = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "lfm2";
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.positive_or("norm_eps", 1e-5));
  spec.norm_eps = static_cast<float>(eps);
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_embedding", spec.head.tied));

  HEADRACE_ASSIGN_OR_RETURN(const bool adjust, config.boolean_or("block_auto_adjust_ff_dim", true));
  HEADRACE_ASSIGN_OR_RETURN(int64_t width,
                            config.integer_or("block_ff_dim", 1, INT32_MAX, dense(spec.layers[0]).intermediate_size));
  if (adjust) {
    HEADRACE_ASSIGN_OR_RETURN(const double factor, config.number_or("block_ffn_dim_multiplier", 1.0));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t multiple, config.integer_or("block_multiple_of", 1, INT32_MAX, 256));
    width = static_cast<int64_t>(factor * static_cast<double>(2 * width / 3));
    width = (width + multiple - 1) / multiple * multiple;
  }
  for (LayerSpec& layer : spec.layers) dense(layer).intermediate_size = static_cast<int32_t>(width);
  std::vector<std::string> types(spec.layers.size(), "conv");
  if (config.has("layer_types")) {
    HEADRACE_ASSIGN_OR_RETURN(types, read_mixed_layer_types(config, spec.layers.size()));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> full, config.integers("full_attn_idxs"));
    for (const int64_t i : full) {
      if (i < 0 || i >= static_cast<int64_t>(types.size())) {
        return malformed(config.place_of("full_attn_idxs"), "there is no layer {}", i);
      }
      types[static_cast<size_t>(i)] = "full_attention";
    }
    if (full.empty()) types.assign(types.size(), "full_attention");
  }
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec, types));
  return spec;
}

constexpr std::string_view kMoeKeys[] = {
    "conv_L_cache",   "conv_bias",        "layer_types", "moe_intermediate_size", "norm_eps",
    "norm_topk_prob", "num_dense_layers", "num_experts", "num_experts_per_tok",   "routed_scaling_factor",
    "tie_embedding",  "use_expert_bias",  "use_pos_enc"};

MixtureOfExperts plain_experts() {
  MixtureOfExperts moe;
  moe.router.score = RouterScore::kSigmoid;
  moe.router.normalize = true;
  moe.router.sum_added = 1e-6f;
  return moe;
}

Result<MixtureOfExperts> read_experts(const ConfigReader& config) {
  MixtureOfExperts moe = plain_experts();
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_experts", 1, 1 << 14, 32));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, config.integer_or("num_experts_per_tok", 1, experts, 4));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("moe_intermediate_size", 1, 1 << 22, 1792));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, config.number_or("routed_scaling_factor", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(moe.router.correction, config.boolean_or("use_expert_bias", true));
  HEADRACE_ASSIGN_OR_RETURN(moe.router.normalize, config.boolean_or("norm_topk_prob", true));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(used);
  moe.router.scale = static_cast<float>(scale);
  moe.intermediate_size = static_cast<int32_t>(inner);
  return moe;
}

Result<ModelSpec> lfm2_moe_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kMoeKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_pos_enc", true));
  DenseDefaults defaults{65536, 2048, 7168, 32, 32, 8};
  defaults.max_position_embeddings = 128000;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "norm_eps";
  defaults.tied = true;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "lfm2_moe";
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_embedding", spec.head.tied));
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_experts(config));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("num_dense_layers", 0, INT32_MAX, 2));
  set_experts(spec, moe, [&](size_t layer) { return static_cast<int64_t>(layer) >= num_dense; });
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, read_mixed_layer_types(config, spec.layers.size()));
  HEADRACE_RETURN_IF_ERROR(set_layers(config, spec, types));
  return spec;
}

constexpr std::string_view kGgufKeys[] = {"feed_forward_length",  "attention.head_count",   "attention.head_count_kv",
                                          "attention.key_length", "attention.value_length", "rope.freq_base",
                                          "rope.dimension_count", "shortconv.l_cache"};

Result<ModelSpec> read_gguf(const GgufReader& gguf, const char* architecture,
                            std::span<const std::string_view> more_keys = {}) {
  std::vector<std::string_view> keys(std::begin(kGgufKeys), std::end(kGgufKeys));
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, keys));
  spec.architecture = architecture;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t width, gguf.integer("feed_forward_length", 1, 1 << 22));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, gguf.integer("shortconv.l_cache", 2, kMostConvKernel));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                            read_per_layer(gguf, "attention.head_count_kv", spec.layers.size()));
  DenseFeedForward feed_forward;
  feed_forward.intermediate_size = static_cast<int32_t>(width);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].feed_forward = feed_forward;
    spec.layers[i].feed_forward_norm = true;
    if (kv_heads[i] == 0) {
      const bool bias = gguf.file().find(fmt::format("blk.{}.shortconv.conv.bias", i)) != nullptr;
      spec.layers[i].attention = short_conv(spec, kernel, bias);
      continue;
    }
    HEADRACE_ASSIGN_OR_RETURN(GqaAttention attention, read_gguf_attention(gguf, spec, kv_heads[i]));
    attention.qk_norm = true;
    spec.layers[i].attention = std::move(attention);
  }
  return spec;
}

Result<ModelSpec> lfm2_from_gguf(const GgufReader& gguf) { return read_gguf(gguf, "lfm2"); }

Result<ModelSpec> lfm2_moe_from_gguf(const GgufReader& gguf) {
  std::vector<std::string_view> keys{"expert_count", "expert_used_count"};
  keys.insert(keys.end(), moe_gguf_keys().begin(), moe_gguf_keys().end());
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_gguf(gguf, "lfm2_moe", keys));
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, plain_experts()));
  return spec;
}

constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.out_proj"},
    {"q_norm", "self_attn.q_layernorm"},
    {"k_norm", "self_attn.k_layernorm"},
    {"conv_b", "conv.in_proj"},
    {"conv_c", "conv.in_proj"},
    {"conv_x", "conv.in_proj"},
    {"conv", "conv.conv"},
    {"mixer_out", "conv.out_proj"},
    {"gate_proj", "feed_forward.w1"},
    {"up_proj", "feed_forward.w3"},
    {"down_proj", "feed_forward.w2"},
    {"attention_norm", "operator_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"router", "feed_forward.gate"},
    {"router.correction", "feed_forward.expert_bias"},
    {"experts.*.gate_proj", "feed_forward.experts.*.w1"},
    {"experts.*.up_proj", "feed_forward.experts.*.w3"},
    {"experts.*.down_proj", "feed_forward.experts.*.w2"},
};
constexpr NamePair kHfTop[] = {
    {"embed", "model.embed_tokens"}, {"final_norm", "model.embedding_norm"}, {"lm_head", "lm_head"}};

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"q_norm", "attn_q_norm"},
    {"k_norm", "attn_k_norm"},
    {"conv_b", "shortconv.in_proj"},
    {"conv_c", "shortconv.in_proj"},
    {"conv_x", "shortconv.in_proj"},
    {"conv", "shortconv.conv"},
    {"mixer_out", "shortconv.out_proj"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"router", "ffn_gate_inp"},
    {"router.correction", "exp_probs_b.bias"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
};
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"}, {"final_norm", "token_embd_norm"}, {"lm_head", "output"}};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTop, {}, kTiedHead}; }
WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, {}}; }

}  // namespace

const Family kLfm2Family = {"lfm2",           "Lfm2ForCausalLM", "lfm2",   "lfm2",
                            lfm2_from_config, lfm2_from_gguf,    hf_names, gguf_names};
const Family kLfm2MoeFamily = {"lfm2_moe",           "Lfm2MoeForCausalLM", "lfm2_moe", "lfm2moe",
                               lfm2_moe_from_config, lfm2_moe_from_gguf,   hf_names,   gguf_names};

}  // namespace headrace
