// GLM-4 (0414): norms before and after each block, half of each head rotates in neighbouring pairs, gate and up in one
// tensor. Reference: transformers models/glm4.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias"};

Result<ModelSpec> glm4_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 2;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1.5625e-7;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "glm4";
  HEADRACE_ASSIGN_OR_RETURN(RopeSpec rope, read_rotation(config, spec, 10000.0, 0.5));
  rope.interleaved = true;
  LayerChoices choices;
  choices.attention_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).output_bias = false;
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_up_proj"},
    {"up_proj", "mlp.gate_up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"post_feed_forward_norm", "post_mlp_layernorm"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kGlm4Family = {"glm4", "Glm4ForCausalLM", "glm4", "", glm4_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
