// Nemotron and Minitron (dense): layer norms whose weights are stored minus one, a feed-forward of squared ReLUs without a
// gate, half of each head rotates. Reference: transformers models/nemotron.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"norm_eps", "attention_bias", "mlp_bias"};

Result<ModelSpec> nemotron_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  defaults.keys.norm_eps = "norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "nemotron";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  spec.norm_weight_offset = 1.0f;
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 0.5));
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

}  // namespace

const Family kNemotronFamily = {"nemotron", "NemotronForCausalLM", "nemotron", "", nemotron_from_config,
                                nullptr,    llama_hf_names,        nullptr};

}  // namespace headrace
