// Phi-1, Phi-1.5 and Phi-2: attention and feed-forward side by side behind one layer norm, biases everywhere, of each head
// a part rotates. Reference: transformers models/phi.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"layer_norm_eps", "qk_layernorm",
                                         // Of training.
                                         "resid_pdrop", "embd_pdrop"};

void set_blocks(ModelSpec& spec) {
  spec.architecture = "phi";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  spec.head.bias = true;
  for (LayerSpec& layer : spec.layers) {
    layer.parallel = true;
    layer.feed_forward_norm = false;
    gqa(layer).qkv_bias = gqa(layer).output_bias = true;
    dense(layer).gated = false;
    dense(layer).bias = true;
  }
}

Result<ModelSpec> phi_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("qk_layernorm", false));
  HEADRACE_RETURN_IF_ERROR(config.only("tie_word_embeddings", false));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "layer_norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 0.5));
  LayerChoices choices;
  choices.activation = "gelu_new";
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  set_blocks(spec);
  return spec;
}

Result<ModelSpec> phi_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  // Converters state four times the hidden size whatever the model has.
  const TensorEntry* up = gguf.file().find("blk.0.ffn_up.weight");
  if (up == nullptr || up->shape.size() != 2 || up->shape[0] < 1 || up->shape[0] > (1 << 22)) {
    return malformed("blk.0.ffn_up.weight", "missing, or no matrix");
  }
  for (LayerSpec& layer : spec.layers) {
    dense(layer).intermediate_size = static_cast<int32_t>(up->shape[0]);
    dense(layer).activation = Activation::kGeluTanh;
  }
  set_blocks(spec);
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},        {"k_proj", "self_attn.k_proj"}, {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.dense"},         {"up_proj", "mlp.fc1"},         {"down_proj", "mlp.fc2"},
    {"attention_norm", "input_layernorm"},
};
constexpr NamePair kTop[] = {
    {"embed", "model.embed_tokens"}, {"final_norm", "model.final_layernorm"}, {"lm_head", "lm_head"}};
constexpr std::string_view kIgnored[] = {"rotary_emb.inv_freq"};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kTop, {}, kIgnored}; }

}  // namespace

const Family kPhiFamily = {"phi",           "PhiForCausalLM", "phi",    "phi2",
                           phi_from_config, phi_from_gguf,    hf_names, dense_gguf_names};

}  // namespace headrace
