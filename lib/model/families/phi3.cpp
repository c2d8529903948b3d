// Phi-3 and Phi-4-mini: Llama with q, k and v in one tensor, gate and up in another, and LongRoPE: short and long
// sequences rotate differently. Reference: transformers models/phi3.
#include "model/families/moe_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"sliding_window", "attention_bias", "resid_pdrop", "embd_pdrop", "mlp_bias"};

Result<ModelSpec> phi3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_moe_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "phi3";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 1.0));
  if (rope.type != "default" && rope.type != "longrope") {
    return unsupported(config.place_of("rope_parameters/rope_type"), "'{}' is no rope type of phi3", rope.type);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  LayerChoices choices;
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).window = static_cast<int32_t>(window);
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.qkv_proj"},
    {"k_proj", "self_attn.qkv_proj"},
    {"v_proj", "self_attn.qkv_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_up_proj"},
    {"up_proj", "mlp.gate_up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};
constexpr NamePair kTop[] = {{"embed", "model.embed_tokens"}, {"final_norm", "model.norm"}, {"lm_head", "lm_head"}};
constexpr std::string_view kIgnored[] = {"rotary_emb.inv_freq", "lm_head.weight"};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kTop, {}, kIgnored}; }

}  // namespace

const Family kPhi3Family = {"phi3", "Phi3ForCausalLM", "phi3", "", phi3_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
