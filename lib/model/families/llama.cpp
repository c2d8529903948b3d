// Llama 1 to 3.3 and what is built like it (SmolLM2, TinyLlama), and Mistral 7B: Llama with a window.
// Reference: transformers models/llama, models/mistral. In GGUF, rows of q and k are reordered so that the
// rotation turns neighbouring pairs.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"

namespace headrace {

namespace {

Status set_rope(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 10000.0, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = *rope;
  return {};
}

constexpr std::string_view kLlamaKeys[] = {"attention_bias", "mlp_bias", "use_qk_norm", "qk_layernorm",
                                           "sliding_window"};
constexpr std::string_view kMistralKeys[] = {"sliding_window", "attention_bias", "layer_types"};

Result<ModelSpec> llama_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kLlamaKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  HEADRACE_RETURN_IF_ERROR(config.only("sliding_window", nullptr));
  HEADRACE_RETURN_IF_ERROR(config.only("use_qk_norm", false));
  HEADRACE_RETURN_IF_ERROR(config.only("qk_layernorm", false));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "llama";
  HEADRACE_RETURN_IF_ERROR(set_rope(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", "silu"));
  HEADRACE_ASSIGN_OR_RETURN(const bool attention_bias, config.boolean_or("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).qkv_bias = gqa(layer).output_bias = attention_bias;
    dense(layer).activation = activation;
    dense(layer).bias = mlp_bias;
  }
  return spec;
}

Result<ModelSpec> mistral_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kMistralKeys));
  DenseDefaults defaults;
  defaults.max_position_embeddings = 4096 * 32;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "mistral";
  HEADRACE_RETURN_IF_ERROR(set_rope(config, spec));
  HEADRACE_RETURN_IF_ERROR(config.only("layer_types", nullptr));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", "silu"));
  // The class's default window is 4096; files without one say null.
  if (config.find("sliding_window") == nullptr && !config.contains_null("sliding_window")) {
    return malformed(config.place_of("sliding_window"), "missing (null means no window)");
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).window = static_cast<int32_t>(window);
    dense(layer).activation = activation;
  }
  return spec;
}

Result<ModelSpec> llama_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, gguf.integer_or("expert_count", 0, INT32_MAX, 0));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.experts = experts > 0}));
  spec.architecture = "llama";
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
                          "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (gguf.has(key)) return unsupported(gguf.key(key), "not a parameter of llama models");
  }
  for (LayerSpec& layer : spec.layers) gqa(layer).rope.interleaved = true;
  if (experts > 0) {
    MixtureOfExperts moe;  // Mixtral
    moe.router.normalize = true;
    HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  }
  return spec;
}

}  // namespace

const Family kLlamaFamily = {"llama",           "LlamaForCausalLM", "llama",        "llama",
                             llama_from_config, llama_from_gguf,    llama_hf_names, moe_gguf_names};
const Family kMistralFamily = {"mistral", "MistralForCausalLM", "mistral", "", mistral_from_config,
                               nullptr,   llama_hf_names,       nullptr};

}  // namespace headrace
