// Hunyuan (dense): Llama whose heads of q and k are normalised after the rotation. Its "dynamic" rope type is a fixed other
// theta. Reference: transformers models/hunyuan_v1_dense.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "attention_head_dim", "use_qk_norm",
                                         // Of generation.
                                         "eod_token_id"};

Result<ModelSpec> hunyuan_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_qk_norm", true));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "hunyuan_v1_dense";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0));
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, {}));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).qk_norm = true;
    gqa(layer).qk_norm_kind = QkNormKind::kHeadAfterRotation;
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.query_layernorm"},
    {"k_norm", "self_attn.key_layernorm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kHunyuanFamily = {"hunyuan_v1_dense",
                               "HunYuanDenseV1ForCausalLM",
                               "hunyuan_v1_dense",
                               "",
                               hunyuan_from_config,
                               nullptr,
                               hf_names,
                               nullptr};

}  // namespace headrace
