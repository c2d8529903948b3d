// Arcee (AFM): Llama with a feed-forward of squared ReLUs without a gate. Reference: transformers models/arcee.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "mlp_bias"};

Result<ModelSpec> arcee_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "arcee";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  LayerChoices choices;
  choices.activation = "relu2";
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    dense(layer).gated = false;
  }
  return spec;
}

Result<ModelSpec> arcee_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "arcee";
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope.interleaved = true;
    dense(layer).gated = false;
    dense(layer).activation = Activation::kRelu2;
  }
  return spec;
}

}  // namespace

const Family kArceeFamily = {"arcee",           "ArceeForCausalLM", "arcee",        "arcee",
                             arcee_from_config, arcee_from_gguf,    llama_hf_names, dense_gguf_names};

}  // namespace headrace
