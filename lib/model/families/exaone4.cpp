// EXAONE 4: norms after the blocks and on each head of q and k; where there are windows, only windowed layers rotate.
// Reference: transformers models/exaone4.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "sliding_window", "layer_types", "sliding_window_pattern"};
constexpr std::string_view kGgufOwnKeys[] = {"attention.sliding_window", "attention.sliding_window_pattern"};

void set_layers(ModelSpec& spec, const RopeSpec& rope) {
  spec.architecture = "exaone4";
  bool windows = false;
  for (LayerSpec& layer : spec.layers) windows = windows || gqa(layer).window > 0;
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = windows && gqa(layer).window == 0 ? RopeSpec() : rope;
    gqa(layer).qk_norm = true;
    layer.attention_norm = layer.feed_forward_norm = false;
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
  }
}

Result<ModelSpec> exaone4_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  DenseDefaults defaults;
  defaults.num_kv_heads = 32;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  if (config.contains_null("sliding_window")) {
    for (LayerSpec& layer : spec.layers) gqa(layer).window = 0;
  } else if (const nlohmann::json* pattern = config.find("sliding_window_pattern");
             pattern != nullptr && pattern->is_string() && !config.has("layer_types")) {
    return unsupported(config.place_of("sliding_window_pattern"), "a pattern of letters; layer_types is needed");
  } else {
    HEADRACE_RETURN_IF_ERROR(read_windows(config, spec, 4096, 4));
  }
  LayerChoices choices;
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  set_layers(spec, rope);
  return spec;
}

Result<ModelSpec> exaone4_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf, kGgufOwnKeys));
  HEADRACE_RETURN_IF_ERROR(read_gguf_windows(gguf, spec, 4));
  const RopeSpec rope = gqa(spec.layers[0]).rope;
  set_layers(spec, rope);
  return spec;
}

}  // namespace

const Family kExaone4Family = {"exaone4",           "Exaone4ForCausalLM", "exaone4",          "exaone4",
                               exaone4_from_config, exaone4_from_gguf,    post_norm_hf_names, dense_gguf_names};

}  // namespace headrace
