// Granite 3 (dense): Llama with factors on embeddings, scores, residuals and logits. Reference: transformers
// models/granite.
#include "model/families/granite.h"

#include "model/families/config_keys.h"

namespace headrace {

Result<GraniteFactors> read_granite_factors(const ConfigReader& config) {
  GraniteFactors out;
  HEADRACE_ASSIGN_OR_RETURN(out.attention, config.number_or("attention_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.residual, config.number_or("residual_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.embedding, config.number_or("embedding_multiplier", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.logits, config.positive_or("logits_scaling", 1.0));
  return out;
}

Result<GraniteFactors> read_granite_factors(const GgufReader& gguf) {
  GraniteFactors out;
  HEADRACE_ASSIGN_OR_RETURN(out.attention, gguf.number_or("attention.scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.residual, gguf.number_or("residual_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.embedding, gguf.number_or("embedding_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(out.logits, gguf.positive_or("logit_scale", 1.0));
  return out;
}

Status set_granite_factors(ModelSpec& spec, const GraniteFactors& factors) {
  if (factors.logits == 0) return malformed("logits_scaling", "is zero");
  spec.embedding_scale = static_cast<float>(factors.embedding);
  spec.head.logit_scale = static_cast<float>(1.0 / factors.logits);
  for (LayerSpec& layer : spec.layers) {
    if (auto* attention = std::get_if<GqaAttention>(&layer.attention)) {
      attention->scale = static_cast<float>(factors.attention);
    }
    layer.attention_residual.scale = layer.feed_forward_residual.scale = static_cast<float>(factors.residual);
  }
  return {};
}

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_multiplier", "residual_multiplier", "embedding_multiplier",
                                         "logits_scaling",       "attention_bias",      "mlp_bias"};

Result<ModelSpec> granite_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.own_keys.assign(std::begin(kGraniteFactors), std::end(kGraniteFactors));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  LayerChoices choices;
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  spec.architecture = "granite";
  HEADRACE_ASSIGN_OR_RETURN(const GraniteFactors factors, read_granite_factors(config));
  HEADRACE_RETURN_IF_ERROR(set_granite_factors(spec, factors));
  return spec;
}

Result<ModelSpec> granite_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = kGraniteGgufFactors}));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "granite";
  HEADRACE_ASSIGN_OR_RETURN(const GraniteFactors factors, read_granite_factors(gguf));
  HEADRACE_RETURN_IF_ERROR(set_granite_factors(spec, factors));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope.interleaved = true;
  return spec;
}

}  // namespace

const Family kGraniteFamily = {"granite",           "GraniteForCausalLM", "granite",      "granite",
                               granite_from_config, granite_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
