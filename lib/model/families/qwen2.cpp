// Qwen2 and Qwen2.5: biases on q, k and v, and a window on the upper layers where the config switches it on.
// Reference: transformers models/qwen2.
#include "model/families/config_keys.h"
#include "model/families/qwen.h"

namespace headrace {

Result<ModelSpec> read_qwen_config(const ConfigReader& config, const DenseDefaults& defaults) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 10000.0, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", "silu"));

  HEADRACE_ASSIGN_OR_RETURN(const bool use_window, config.boolean_or("use_sliding_window", false));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  if (windowed.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t first, config.integer_or("max_window_layers", 0, INT32_MAX, 28));
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      windowed.push_back(use_window && config.has("sliding_window") && static_cast<int64_t>(i) >= first);
    }
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).rope = *rope;
    dense(spec.layers[i]).activation = activation;
    if (!windowed[i]) continue;
    if (!use_window) {
      return malformed(config.place_of("layer_types"), "layer {} is sliding_attention, but use_sliding_window is off",
                       i);
    }
    HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer("sliding_window", 1, 1 << 28));
    gqa(spec.layers[i]).window = static_cast<int32_t>(window);
  }
  return spec;
}

Result<ModelSpec> read_qwen_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
                          "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (gguf.has(key)) return unsupported(gguf.key(key), "not a parameter of {} models", gguf.architecture());
  }
  return spec;
}

namespace {

Result<ModelSpec> qwen2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kQwenKeys));
  DenseDefaults defaults;
  defaults.max_position_embeddings = 32768;
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", true));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_config(config, defaults));
  spec.architecture = "qwen2";
  for (LayerSpec& layer : spec.layers) gqa(layer).qkv_bias = true;
  return spec;
}

Result<ModelSpec> qwen2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_gguf(gguf));
  spec.architecture = "qwen2";
  for (LayerSpec& layer : spec.layers) gqa(layer).qkv_bias = true;
  return spec;
}

}  // namespace

const Family kQwen2Family = {"qwen2",           "Qwen2ForCausalLM", "qwen2",        "qwen2",
                             qwen2_from_config, qwen2_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
