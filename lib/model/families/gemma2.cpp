// Gemma 2: norms before and after each block, soft caps on scores and logits, windows on every other layer. Norm weights
// are stored minus one in safetensors. Reference: transformers models/gemma2.
#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "sliding_window",    "layer_types",           "attention_bias",         "use_bidirectional_attention"};

Status set_softcaps(ModelSpec& spec, double of_scores, double of_logits, double scalar) {
  if (!(scalar > 0)) return malformed("query_pre_attn_scalar", "{} is not positive", scalar);
  spec.architecture = "gemma2";
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  spec.head.logit_softcap = static_cast<float>(of_logits);
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).scale = static_cast<float>(std::pow(scalar, -0.5));
    gqa(layer).logit_softcap = static_cast<float>(of_scores);
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
  }
  return {};
}

Result<ModelSpec> gemma2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.vocab_size = 256000;
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.num_layers = 26;
  defaults.num_heads = 8;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 256;
  defaults.max_position_embeddings = 8192;
  defaults.tied = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.norm_weight_offset = 1.0f;
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  HEADRACE_RETURN_IF_ERROR(read_windows(config, spec, 4096, 2));
  LayerChoices choices;
  choices.activation_key = "hidden_activation";
  choices.activation = "gelu_pytorch_tanh";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  const auto softcap = [&](const char* key, double fallback) -> Result<double> {
    HEADRACE_ASSIGN_OR_RETURN(const double cap, config.number_or(key, config.contains_null(key) ? 0.0 : fallback));
    if (cap < 0) return malformed(config.place_of(key), "{} is negative", cap);
    return cap;
  };
  HEADRACE_ASSIGN_OR_RETURN(const double of_scores, softcap("attn_logit_softcapping", 50.0));
  HEADRACE_ASSIGN_OR_RETURN(const double of_logits, softcap("final_logit_softcapping", 30.0));
  HEADRACE_ASSIGN_OR_RETURN(const double scalar, config.positive_or("query_pre_attn_scalar", 256));
  HEADRACE_RETURN_IF_ERROR(set_softcaps(spec, of_scores, of_logits, scalar));
  return spec;
}

// GGUF keeps no query_pre_attn_scalar: it equals head_dim in every published size but 27B, where it is hidden_size /
// num_heads.
Result<ModelSpec> gemma2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(read_gguf_windows(gguf, spec, 2));
  HEADRACE_ASSIGN_OR_RETURN(const double of_scores, gguf.number_or("attn_logit_softcapping", 50.0));
  HEADRACE_ASSIGN_OR_RETURN(const double of_logits, gguf.number_or("final_logit_softcapping", 30.0));
  const GqaAttention& attention = gqa(spec.layers[0]);
  const bool is_27b = spec.layers.size() == 46 && spec.hidden_size == 4608;
  const int32_t scalar = is_27b ? spec.hidden_size / attention.num_heads : attention.head_dim;
  HEADRACE_RETURN_IF_ERROR(set_softcaps(spec, of_scores, of_logits, scalar));
  for (LayerSpec& layer : spec.layers) dense(layer).activation = Activation::kGeluTanh;
  return spec;
}

}  // namespace

const Family kGemma2Family = {"gemma2",           "Gemma2ForCausalLM", "gemma2",       "gemma2",
                              gemma2_from_config, gemma2_from_gguf,    gemma_hf_names, dense_gguf_names};

}  // namespace headrace
