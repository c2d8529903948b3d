// GPT-2: learned positions, layer norms, biases everywhere; matrices are stored transposed, q, k and v in one. Reference:
// transformers models/gpt2.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "n_embd", "n_head", "n_inner", "n_layer", "n_positions", "activation_function", "layer_norm_epsilon",
    "add_cross_attention", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    // Of training, n_positions again, and the type that scores are computed in, which is float32 here.
    "attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "reorder_and_upcast_attn",
    // Of heads for other tasks.
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"};

Result<ModelSpec> gpt2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("scale_attn_by_inverse_layer_idx", false));
  HEADRACE_RETURN_IF_ERROR(config.only("scale_attn_weights", true));
  DenseDefaults defaults;
  defaults.vocab_size = 50257;
  defaults.hidden_size = 768;
  defaults.num_layers = 12;
  defaults.num_heads = 12;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 1024;
  defaults.norm_eps = 1e-5;
  defaults.tied = true;
  defaults.keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions", "layer_norm_epsilon"};
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden, config.integer_or("n_embd", 1, 1 << 18, defaults.hidden_size));
  defaults.intermediate_size = 4 * hidden;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "gpt2";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  spec.learned_positions = spec.max_position_embeddings;
  LayerChoices choices;
  choices.activation_key = "activation_function";
  choices.activation = "gelu_new";
  choices.attention_bias_key = nullptr;
  choices.attention_bias = choices.feed_forward_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) dense(layer).gated = false;
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "attn.c_attn", TensorForm::kTransposed},
    {"k_proj", "attn.c_attn", TensorForm::kTransposed},
    {"v_proj", "attn.c_attn", TensorForm::kTransposed},
    {"o_proj", "attn.c_proj", TensorForm::kTransposed},
    {"up_proj", "mlp.c_fc", TensorForm::kTransposed},
    {"down_proj", "mlp.c_proj", TensorForm::kTransposed},
    {"attention_norm", "ln_1"},
    {"feed_forward_norm", "ln_2"},
};
constexpr NamePair kTop[] = {{"embed", "transformer.wte"},
                             {"positions", "transformer.wpe"},
                             {"final_norm", "transformer.ln_f"},
                             {"lm_head", "lm_head"}};
constexpr NamePair kBareTop[] = {
    {"embed", "wte"}, {"positions", "wpe"}, {"final_norm", "ln_f"}, {"lm_head", "lm_head"}};
// Masks that old files keep.
constexpr std::string_view kIgnored[] = {".attn.bias", ".attn.masked_bias", "lm_head.weight"};

// The first files have no prefix.
WeightNaming hf_names(const TensorFile& weights) {
  if (has_prefix(weights, "h.")) return {"h.", kLayer, kBareTop, {}, kIgnored};
  return {"transformer.h.", kLayer, kTop, {}, kIgnored};
}

}  // namespace

const Family kGpt2Family = {"gpt2", "GPT2LMHeadModel", "gpt2", "", gpt2_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
