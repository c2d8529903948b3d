// ERNIE 4.5 with experts: rotation of neighbouring pairs, softmax scores with a correction for the choice.
// Reference: transformers models/ernie4_5_moe.
#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "moe_k",
    "moe_num_experts",
    "moe_num_shared_experts",
    "moe_intermediate_size",
    "moe_layer_start_index",
    "moe_norm_min",
    "moe_layer_end_index",
    "moe_layer_interval",
    "use_bias",
    "moe_use_aux_free",
};

Result<ModelSpec> ernie_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("use_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("moe_use_aux_free", true));
  DenseDefaults defaults;
  defaults.num_kv_heads = 4;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.tied = true;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "ernie4_5_moe";
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 500000.0, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  rope->interleaved = true;

  MixtureOfExperts moe;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("moe_num_experts", 1, 1 << 14, 64));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("moe_k", 1, experts, 6));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("moe_intermediate_size", 1, 1 << 22, 1536));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("moe_num_shared_experts", 0, 256, 2));
  HEADRACE_ASSIGN_OR_RETURN(const double floor, config.number_or("moe_norm_min", 1e-12));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.correction = true;
  moe.router.normalize = true;
  moe.router.sum_floor = static_cast<float>(floor);
  moe.intermediate_size = static_cast<int32_t>(inner);
  moe.shared_intermediate_size = static_cast<int32_t>(shared * inner);
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = *rope;
    dense(layer).activation = moe.activation;
  }
  const auto num_layers = static_cast<int64_t>(spec.layers.size());
  HEADRACE_ASSIGN_OR_RETURN(const int64_t first, config.integer_or("moe_layer_start_index", 0, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(int64_t last, config.integer_or("moe_layer_end_index", -1, INT32_MAX, -1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t interval, config.integer_or("moe_layer_interval", 1, INT32_MAX, 1));
  if (last == -1) last = num_layers - 1;
  set_experts(spec, moe, [&](size_t layer) {
    const auto index = static_cast<int64_t>(layer);
    return (index + 1) % interval == 0 && index >= first && index <= last;
  });
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.gate"},
    {"router.correction", "mlp.moe_statics.e_score_correction_bias"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
    {"shared.gate_proj", "mlp.shared_experts.gate_proj"},
    {"shared.up_proj", "mlp.shared_experts.up_proj"},
    {"shared.down_proj", "mlp.shared_experts.down_proj"},
};
// Layers that predict tokens further ahead.
constexpr std::string_view kIgnoredPrefixes[] = {"model.mtp_"};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, kIgnoredPrefixes, kTiedHead}; }

}  // namespace

const Family kErnie45MoeFamily = {
    "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "", ernie_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
