// StarCoder2: layer norms, biases everywhere, a feed-forward without a gate. GGUF does not keep its window. Reference:
// transformers models/starcoder2.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"sliding_window", "norm_epsilon", "use_bias", "mlp_type", "norm_type",
                                         "activation_function", "scale_attn_weights", "layer_norm_epsilon",
                                         // Of training.
                                         "embedding_dropout", "residual_dropout",
                                         // The type that the softmax is computed in, which is float32 here.
                                         "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"};

void set_blocks(ModelSpec& spec) {
  spec.architecture = "starcoder2";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  for (LayerSpec& layer : spec.layers) {
    dense(layer).gated = false;
  }
}

Result<ModelSpec> starcoder2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_type", "default"));
  HEADRACE_RETURN_IF_ERROR(config.only("scale_attn_weights", true));
  HEADRACE_RETURN_IF_ERROR(config.only("norm_type", "layer_norm"));
  DenseDefaults defaults;
  defaults.num_kv_heads = 2;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "norm_epsilon";
  defaults.tied = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  const nlohmann::json* const eps = config.find("norm_epsilon");
  HEADRACE_RETURN_IF_ERROR(
      config.only("layer_norm_epsilon", eps != nullptr ? *eps : nlohmann::json(defaults.norm_eps)));
  set_blocks(spec);
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  LayerChoices choices;
  choices.activation = "gelu_pytorch_tanh";
  choices.attention_bias_key = choices.feed_forward_bias_key = "use_bias";
  choices.attention_bias = choices.feed_forward_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).window = static_cast<int32_t>(window);
  }
  return spec;
}

Result<ModelSpec> starcoder2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  set_blocks(spec);
  for (LayerSpec& layer : spec.layers) dense(layer).activation = Activation::kGeluTanh;
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"up_proj", "mlp.c_fc"},
    {"down_proj", "mlp.c_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kStarcoder2Family = {"starcoder2",           "Starcoder2ForCausalLM", "starcoder2", "starcoder2",
                                  starcoder2_from_config, starcoder2_from_gguf,    hf_names,     dense_gguf_names};

}  // namespace headrace
