// GPT-NeoX and Pythia: attention and feed-forward side by side, each behind a layer norm of its own (or one after the
// other), of each head a part rotates, q, k and v lie head by head in one tensor. Reference: transformers models/gpt_neox.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"layer_norm_eps", "use_parallel_residual", "attention_bias", "rotary_pct",
                                         "rotary_emb_base",
                                         // Of training and of other classes.
                                         "classifier_dropout", "layer_norm_epsilon", "type_vocab_size"};

Result<ModelSpec> gpt_neox_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "layer_norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "gpt_neox";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  const GqaAttention& attention = gqa(spec.layers[0]);
  if (attention.num_kv_heads != attention.num_heads) {
    return unsupported(config.place_of("num_key_value_heads"), "not a parameter of gpt_neox models");
  }
  HEADRACE_ASSIGN_OR_RETURN(const double theta, config.positive_or("rotary_emb_base", 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const double partial, config.number_or("rotary_pct", 0.25));
  if (!(partial > 0) || partial > 1) {
    return malformed(config.place_of("rotary_pct"), "{} is no share of a head's dims", partial);
  }
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, theta, partial));
  HEADRACE_ASSIGN_OR_RETURN(const bool parallel, config.boolean_or("use_parallel_residual", true));
  LayerChoices choices;
  choices.activation = "gelu";
  choices.attention_bias = true;
  choices.feed_forward_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    layer.parallel = parallel;
    dense(layer).gated = false;
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "attention.query_key_value", TensorForm::kRowsByHead},
    {"k_proj", "attention.query_key_value", TensorForm::kRowsByHead},
    {"v_proj", "attention.query_key_value", TensorForm::kRowsByHead},
    {"o_proj", "attention.dense"},
    {"up_proj", "mlp.dense_h_to_4h"},
    {"down_proj", "mlp.dense_4h_to_h"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};
constexpr NamePair kTop[] = {
    {"embed", "gpt_neox.embed_in"}, {"final_norm", "gpt_neox.final_layer_norm"}, {"lm_head", "embed_out"}};
// Masks and frequencies that old files keep.
constexpr std::string_view kIgnored[] = {"rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"};

WeightNaming hf_names(const TensorFile&) { return {"gpt_neox.layers.", kLayer, kTop, {}, kIgnored}; }

}  // namespace

const Family kGptNeoxFamily = {
    "gpt_neox", "GPTNeoXForCausalLM", "gpt_neox", "", gpt_neox_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
