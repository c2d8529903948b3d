// Seed-OSS: Llama with biases on q, k and v, and a head_dim of its own. Reference: transformers models/seed_oss. In GGUF
// the norm before the feed-forward goes by the name of a norm after attention.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "attention_out_bias", "mlp_bias",
                                         "residual_dropout"};  // of training

Result<ModelSpec> seed_oss_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 524288;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "seed_oss";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  LayerChoices choices;
  choices.attention_bias = true;
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  HEADRACE_ASSIGN_OR_RETURN(const bool output_bias, config.boolean_or("attention_out_bias", false));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).output_bias = output_bias;
  }
  return spec;
}

Result<ModelSpec> seed_oss_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "seed_oss";
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "post_attention_norm"},
};

WeightNaming gguf_names() {
  WeightNaming naming = dense_gguf_names();
  naming.layer = kGgufLayer;
  return naming;
}

}  // namespace

const Family kSeedOssFamily = {"seed_oss",           "SeedOssForCausalLM", "seed_oss",     "seed_oss",
                               seed_oss_from_config, seed_oss_from_gguf,   llama_hf_names, gguf_names};

}  // namespace headrace
