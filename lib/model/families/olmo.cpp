// OLMo 2 and OLMo 3: norms after the blocks instead of before them, and over all heads of q and of k. OLMo 3 has windows
// on three of four layers, which rotate without the scaling of the others. Reference: transformers models/olmo2, olmo3.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "sliding_window", "layer_types"};
constexpr std::string_view kGgufOwnKeys[] = {"attention.sliding_window", "attention.sliding_window_pattern",
                                             "rope.freq_base_swa"};

void set_norms(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    layer.attention_norm = layer.feed_forward_norm = false;
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
    gqa(layer).qk_norm = true;
    gqa(layer).qk_norm_kind = QkNormKind::kWhole;
  }
}

Result<ModelSpec> read_olmo(const ConfigReader& config) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, {}));
  set_norms(spec);
  return spec;
}

Result<ModelSpec> olmo2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("sliding_window", nullptr));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_olmo(config));
  spec.architecture = "olmo2";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  return spec;
}

Result<ModelSpec> olmo3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_olmo(config));
  spec.architecture = "olmo3";
  HEADRACE_RETURN_IF_ERROR(read_windows(config, spec, 4096, 4));
  HEADRACE_ASSIGN_OR_RETURN(const RopePair ropes, read_rope_pair(config, spec, 500000.0, 500000.0));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = gqa(layer).window > 0 ? ropes.sliding : ropes.full;
  return spec;
}

// GGUF has one name for both.
Result<ModelSpec> olmo2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf, kGgufOwnKeys));
  HEADRACE_RETURN_IF_ERROR(read_gguf_windows(gguf, spec, 4));
  spec.architecture = gguf.has("attention.sliding_window") ? "olmo3" : "olmo2";
  const RopeSpec full = gqa(spec.layers[0]).rope;
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base_swa", full.theta));
  auto sliding = make_rope(theta, full.rotary_dim, {});
  if (!sliding.ok()) return sliding.status().within(gguf.key("rope.freq_base_swa"));
  for (LayerSpec& layer : spec.layers) {
    if (gqa(layer).window > 0) gqa(layer).rope = *sliding;
  }
  set_norms(spec);
  return spec;
}

}  // namespace

const Family kOlmo2Family = {"olmo2",         "Olmo2ForCausalLM", "olmo2",         "olmo2", olmo2_from_config,
                             olmo2_from_gguf, post_norm_hf_names, dense_gguf_names};
const Family kOlmo3Family = {"olmo3", "Olmo3ForCausalLM", "olmo3", "", olmo3_from_config,
                             nullptr, post_norm_hf_names, nullptr};

}  // namespace headrace
