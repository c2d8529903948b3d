// SmolLM3: Llama, of whose layers every fourth does not rotate. GGUF does not say which: every fourth. Reference:
// transformers models/smollm3.
#include <algorithm>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias",         "mlp_bias",         "no_rope_layers",
                                         "no_rope_layer_interval", "layer_types",      "sliding_window",
                                         "use_sliding_window",     "max_window_layers"};
constexpr int64_t kInterval = 4;

void set_ropes(ModelSpec& spec, const RopeSpec& rope, const std::vector<bool>& rotates) {
  for (size_t i = 0; i < spec.layers.size(); ++i) gqa(spec.layers[i]).rope = rotates[i] ? rope : RopeSpec();
}

std::vector<bool> all_but_each(int64_t interval, size_t num_layers) {
  std::vector<bool> out;
  for (size_t i = 0; i < num_layers; ++i) out.push_back((static_cast<int64_t>(i) + 1) % interval != 0);
  return out;
}

Result<ModelSpec> smollm3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_sliding_window", false));
  DenseDefaults defaults;
  defaults.num_kv_heads = 4;
  defaults.max_position_embeddings = 32768;
  defaults.tied = true;
  defaults.own_keys = {"no_rope_layers"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "smollm3";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 2000000.0));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  if (std::find(windowed.begin(), windowed.end(), true) != windowed.end()) {
    return malformed(config.place_of("layer_types"), "windows, but use_sliding_window is off");
  }
  LayerChoices choices;
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t interval,
                            config.integer_or("no_rope_layer_interval", 1, INT32_MAX, kInterval));
  std::vector<bool> rotates = all_but_each(interval, spec.layers.size());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> listed, config.integers("no_rope_layers"));  // 1: rotates
  if (config.has("no_rope_layers")) rotates.assign(listed.begin(), listed.end());
  if (rotates.size() != spec.layers.size()) {
    return malformed(config.place_of("no_rope_layers"), "{} entries for {} layers", rotates.size(), spec.layers.size());
  }
  set_ropes(spec, rope, rotates);
  return spec;
}

Result<ModelSpec> smollm3_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "smollm3";
  RopeSpec rope = gqa(spec.layers[0]).rope;
  rope.interleaved = true;
  set_ropes(spec, rope, all_but_each(kInterval, spec.layers.size()));
  return spec;
}

}  // namespace

const Family kSmolLm3Family = {"smollm3",           "SmolLM3ForCausalLM", "smollm3",      "smollm3",
                               smollm3_from_config, smollm3_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
