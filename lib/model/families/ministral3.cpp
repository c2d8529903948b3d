// Ministral 3: Mistral with YaRN, whose queries grow with the position beyond the original length. Reference: transformers
// models/ministral3.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"sliding_window"};
constexpr std::string_view kGgufKeys[] = {"rope.scaling.yarn_log_multiplier", "attention.temperature_scale"};

void set_position_scale(ModelSpec& spec, double scale, double length) {
  spec.architecture = "ministral3";
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).position_scale = static_cast<float>(scale);
    gqa(layer).position_scale_length = static_cast<int32_t>(length);
  }
}

Result<ModelSpec> ministral3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 262144;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 1000000.0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  LayerChoices choices;
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).window = static_cast<int32_t>(window);
  }
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader scaling,
                            config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling"));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, scaling.number_or("llama_4_scaling_beta", 0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t length, scaling.integer_or("original_max_position_embeddings", 1, 1 << 28,
                                                                     spec.max_position_embeddings));
  set_position_scale(spec, scale, static_cast<double>(length));
  return spec;
}

Result<ModelSpec> ministral3_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = kGgufKeys}));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, gguf.number_or("attention.temperature_scale", 0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t length, gguf.integer_or("rope.scaling.original_context_length", 1, 1 << 28,
                                                                  spec.max_position_embeddings));
  // The factor of cos and sin that this multiplier of the logarithm leaves: transformers' mscale over mscale_all_dim.
  HEADRACE_ASSIGN_OR_RETURN(const double multiplier, gguf.number_or("rope.scaling.yarn_log_multiplier", 0));
  for (LayerSpec& layer : spec.layers) {
    RopeSpec& rope = gqa(layer).rope;
    rope.interleaved = true;
    if (multiplier != 0) rope.attention_factor = 1.0f;
  }
  if (multiplier != 0 && multiplier != 1.0) {
    return unsupported(gguf.key("rope.scaling.yarn_log_multiplier"), "{} (only 0 or 1)", multiplier);
  }
  set_position_scale(spec, scale, static_cast<double>(length));
  return spec;
}

}  // namespace

const Family kMinistral3Family = {"ministral3",           "Ministral3ForCausalLM", "ministral3",   "mistral3",
                                  ministral3_from_config, ministral3_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
