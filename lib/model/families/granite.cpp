// Granite 3 (dense): Llama with factors on embeddings, scores, residuals and logits. Reference: transformers
// models/granite.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kFactors[] = {"attention_multiplier", "residual_multiplier", "embedding_multiplier",
                                         "logits_scaling"};
constexpr std::string_view kOwnKeys[] = {"attention_multiplier", "residual_multiplier", "embedding_multiplier",
                                         "logits_scaling",       "attention_bias",      "mlp_bias"};
constexpr std::string_view kGgufKeys[] = {"attention.scale", "residual_scale", "embedding_scale", "logit_scale"};

Status set_factors(ModelSpec& spec, double attention, double residual, double embedding, double logits) {
  if (logits == 0) return malformed("logits_scaling", "is zero");
  spec.architecture = "granite";
  spec.embedding_scale = static_cast<float>(embedding);
  spec.head.logit_scale = static_cast<float>(1.0 / logits);
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).scale = static_cast<float>(attention);
    layer.residual_scale = static_cast<float>(residual);
  }
  return {};
}

Result<ModelSpec> granite_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.own_keys.assign(std::begin(kFactors), std::end(kFactors));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  LayerChoices choices;
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  HEADRACE_ASSIGN_OR_RETURN(const double attention, config.number_or("attention_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double residual, config.number_or("residual_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double embedding, config.number_or("embedding_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double logits, config.number_or("logits_scaling", 1.0));
  HEADRACE_RETURN_IF_ERROR(set_factors(spec, attention, residual, embedding, logits));
  return spec;
}

Result<ModelSpec> granite_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = kGgufKeys}));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  HEADRACE_ASSIGN_OR_RETURN(const double attention, gguf.number_or("attention.scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double residual, gguf.number_or("residual_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double embedding, gguf.number_or("embedding_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(const double logits, gguf.number_or("logit_scale", 1.0));
  HEADRACE_RETURN_IF_ERROR(set_factors(spec, attention, residual, embedding, logits));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope.interleaved = true;
  return spec;
}

}  // namespace

const Family kGraniteFamily = {"granite",           "GraniteForCausalLM", "granite",      "granite",
                               granite_from_config, granite_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
