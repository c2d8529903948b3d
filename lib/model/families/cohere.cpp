// Command R (Cohere) and Command R7B, Command A (Cohere 2): attention and feed-forward side by side behind one layer norm
// without bias, neighbouring pairs rotate, logits are scaled. Cohere 2 has windows on three of four layers, and the others
// do not rotate. Reference: transformers models/cohere, cohere2.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "layer_norm_eps", "logit_scale", "use_qk_norm",
                                         "sliding_window", "layer_types", "sliding_window_pattern",
                                         "_sliding_window_pattern", "use_gated_activation", "use_parallel_block",
                                         "use_embedding_sharing", "position_embedding_type", "rotary_pct",
                                         // How the makers' program divides the table of embeddings among devices.
                                         "use_parallel_embedding",
                                         // Of the makers' program: sliding_window_pattern in other words.
                                         "layer_switch", "order_of_interleaved_layers"};
constexpr std::string_view kGgufKeys[] = {"logit_scale"};

void set_blocks(ModelSpec& spec, double logit_scale, bool qk_norm) {
  spec.norm = NormKind::kLayer;
  spec.head.logit_scale = static_cast<float>(logit_scale);
  for (LayerSpec& layer : spec.layers) {
    layer.parallel = true;
    layer.feed_forward_norm = false;
    gqa(layer).rope.interleaved = true;
    gqa(layer).qk_norm = qk_norm;
    gqa(layer).qk_norm_kind = QkNormKind::kHeadLayer;
  }
}

Result<ModelSpec> read_cohere(const ConfigReader& config, double theta) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  for (const char* key : {"use_gated_activation", "use_parallel_block", "use_embedding_sharing"}) {
    HEADRACE_RETURN_IF_ERROR(config.only(key, true));
  }
  HEADRACE_RETURN_IF_ERROR(config.only("rotary_pct", 1.0));
  HEADRACE_RETURN_IF_ERROR(config.only("position_embedding_type", "rope_gptj"));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 8192;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "layer_norm_eps";
  defaults.tied = true;
  defaults.own_keys = {"logit_scale"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, theta));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, {}));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, config.number_or("logit_scale", 0.0625));
  HEADRACE_ASSIGN_OR_RETURN(const bool qk_norm, config.boolean_or("use_qk_norm", false));
  set_blocks(spec, scale, qk_norm);
  return spec;
}

Result<ModelSpec> cohere_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("sliding_window", nullptr));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_cohere(config, 500000.0));
  spec.architecture = "cohere";
  return spec;
}

Result<ModelSpec> cohere2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("use_qk_norm", false));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_cohere(config, 10000.0));
  spec.architecture = "cohere2";
  HEADRACE_RETURN_IF_ERROR(read_windows(config, spec, 4096, 4));
  for (LayerSpec& layer : spec.layers) {
    if (gqa(layer).window == 0) gqa(layer).rope = RopeSpec();
  }
  return spec;
}

Result<ModelSpec> cohere_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = kGgufKeys}));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "cohere";
  HEADRACE_ASSIGN_OR_RETURN(const double scale, gguf.number_or("logit_scale", 0.0625));
  set_blocks(spec, scale, gguf.file().find("blk.0.attn_q_norm.weight") != nullptr);
  return spec;
}

}  // namespace

const Family kCohereFamily = {"cohere",           "CohereForCausalLM", "cohere",       "command-r",
                              cohere_from_config, cohere_from_gguf,    llama_hf_names, dense_gguf_names};
const Family kCohere2Family = {"cohere2", "Cohere2ForCausalLM", "cohere2", "", cohere2_from_config,
                               nullptr,   llama_hf_names,       nullptr};

}  // namespace headrace
