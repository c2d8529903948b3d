// StableLM 2: Llama with layer norms, of whose heads a quarter rotates; or with both blocks behind one norm. Reference:
// transformers models/stablelm.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"layer_norm_eps",        "use_qkv_bias", "qk_layernorm",
                                         "use_parallel_residual", "rope_pct",     "rotary_scaling_factor"};

void set_blocks(ModelSpec& spec, bool parallel) {
  spec.architecture = "stablelm";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  for (LayerSpec& layer : spec.layers) {
    layer.parallel = parallel;
    layer.feed_forward_norm = !parallel;
  }
}

Result<ModelSpec> stablelm_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("qk_layernorm", false));
  HEADRACE_RETURN_IF_ERROR(config.only("rotary_scaling_factor", 1.0));
  DenseDefaults defaults;
  defaults.num_kv_heads = 32;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "layer_norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const double partial, config.number_or("rope_pct", 0.25));
  if (!(partial > 0) || partial > 1) {
    return malformed(config.place_of("rope_pct"), "{} is no share of a head's dims", partial);
  }
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, partial));
  HEADRACE_ASSIGN_OR_RETURN(const bool parallel, config.boolean_or("use_parallel_residual", false));
  LayerChoices choices;
  choices.attention_bias_key = "use_qkv_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).output_bias = false;
  }
  set_blocks(spec, parallel);
  return spec;
}

Result<ModelSpec> stablelm_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  set_blocks(spec, gguf.file().find("blk.0.ffn_norm.weight") == nullptr);
  return spec;
}

}  // namespace

const Family kStableLmFamily = {"stablelm",           "StableLmForCausalLM", "stablelm",     "stablelm",
                                stablelm_from_config, stablelm_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
