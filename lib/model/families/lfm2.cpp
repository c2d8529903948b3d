// LFM2: short gated convolutions, and attention in some layers. Reference: transformers models/lfm2.
#include <cmath>

#include "model/families/config_keys.h"
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
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.number_or("norm_eps", 1e-5));
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
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 1000000.0, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, config.integer_or("conv_L_cache", 2, kMostConvKernel, 3));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("conv_bias", false));
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
  for (size_t i = 0; i < types.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    dense(layer).intermediate_size = static_cast<int32_t>(width);
    if (types[i] == "conv") {
      layer.attention = short_conv(spec, kernel, bias);
    } else if (types[i] == "full_attention") {
      gqa(layer).rope = *rope;
      gqa(layer).qk_norm = true;
    } else {
      return unsupported(config.place_of("layer_types"), "unknown layer type '{}'", types[i]);
    }
  }
  return spec;
}

constexpr std::string_view kGgufKeys[] = {"feed_forward_length",  "attention.head_count",   "attention.head_count_kv",
                                          "attention.key_length", "attention.value_length", "rope.freq_base",
                                          "rope.dimension_count", "shortconv.l_cache"};

Result<ModelSpec> lfm2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, kGgufKeys));
  spec.architecture = "lfm2";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t width, gguf.integer("feed_forward_length", 1, INT32_MAX));
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

constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},      {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},      {"o_proj", "self_attn.out_proj"},
    {"q_norm", "self_attn.q_layernorm"}, {"k_norm", "self_attn.k_layernorm"},
    {"conv_b", "conv.in_proj"},          {"conv_c", "conv.in_proj"},
    {"conv_x", "conv.in_proj"},          {"conv", "conv.conv"},
    {"mixer_out", "conv.out_proj"},      {"gate_proj", "feed_forward.w1"},
    {"up_proj", "feed_forward.w3"},      {"down_proj", "feed_forward.w2"},
    {"attention_norm", "operator_norm"}, {"feed_forward_norm", "ffn_norm"},
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
};
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"}, {"final_norm", "token_embd_norm"}, {"lm_head", "output"}};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTop, {}, kTiedHead}; }
WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, {}}; }

}  // namespace

const Family kLfm2Family = {"lfm2",           "Lfm2ForCausalLM", "lfm2",   "lfm2",
                            lfm2_from_config, lfm2_from_gguf,    hf_names, gguf_names};

}  // namespace headrace
