// Qwen3 (dense): q and k are RMS-normalised head by head, no biases unless attention_bias says so.
// Reference: transformers models/qwen3.
#include "model/families/config_keys.h"
#include "model/families/qwen.h"

namespace headrace {

namespace {

Result<ModelSpec> qwen3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kQwenKeys));
  DenseDefaults defaults;
  defaults.max_position_embeddings = 32768;
  defaults.head_dim = 128;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_config(config, defaults));
  spec.architecture = "qwen3";
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).qk_norm = true;
    gqa(layer).qkv_bias = gqa(layer).output_bias = bias;
  }
  return spec;
}

Result<ModelSpec> qwen3_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_qwen_gguf(gguf));
  spec.architecture = "qwen3";
  for (LayerSpec& layer : spec.layers) gqa(layer).qk_norm = true;
  return spec;
}

}  // namespace

const Family kQwen3Family = {"qwen3",           "Qwen3ForCausalLM", "qwen3",        "qwen3",
                             qwen3_from_config, qwen3_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
