// gpt-oss: windows on every other layer, a learned sink in each head's softmax, experts with biases and a clamped
// activation. Reference: transformers models/gpt_oss.
#include <algorithm>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",         "layer_types",  "num_local_experts", "num_experts_per_tok", "sliding_window",
    "swiglu_alpha",           "swiglu_limit", "experts_per_token",  // the older name of num_experts_per_tok
    "initial_context_length",                                       // repeated in the rotary parameters
};
constexpr double kTheta = 150000.0;
constexpr int64_t kWindow = 128;

void set_common(ModelSpec& spec, MixtureOfExperts& moe) {
  spec.architecture = "gpt_oss";
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).sinks = true;
    gqa(layer).qkv_bias = gqa(layer).output_bias = true;
  }
  moe.router.bias = true;
  moe.router.normalize = true;  // a softmax over the chosen experts alone
  moe.activation = Activation::kClampedSwish;
  moe.activation_limit = 7.0f;
  moe.bias = true;
}

Result<ModelSpec> gpt_oss_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", true));
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("swiglu_alpha", 1.702));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 64;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  if (!config.has("rope_parameters") && !config.has("rope_scaling")) {
    return malformed(config.place_of("rope_parameters"), "missing, and rope_scaling too");
  }
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, kTheta, spec.max_position_embeddings));
  auto rope = make_rope(parameters.theta, gqa(spec.layers[0]).head_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, kWindow));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 1, 1 << 14, 128));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t old_top_k,
                            config.integer_or("experts_per_token", 1, experts, std::min<int64_t>(4, experts)));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, old_top_k));
  HEADRACE_ASSIGN_OR_RETURN(const double limit, config.positive_or("swiglu_limit", 7.0));
  MixtureOfExperts moe;
  set_common(spec, moe);
  moe.activation_limit = static_cast<float>(limit);
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.intermediate_size = dense(spec.layers[0]).intermediate_size;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).rope = *rope;
    const bool slides = windowed.empty() ? i % 2 == 0 : windowed[i];
    gqa(spec.layers[i]).window = slides ? static_cast<int32_t>(window) : 0;
  }
  set_experts(spec, moe, [](size_t) { return true; });
  return spec;
}

Result<ModelSpec> gpt_oss_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.experts = true, .more_keys = moe_gguf_keys()}));
  // GGUF does not say that the borders of yarn's ramp are not rounded here.
  HEADRACE_ASSIGN_OR_RETURN(RopeScaling scaling, gguf.rope_scaling(spec.max_position_embeddings));
  scaling.truncate = false;
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base", kTheta));
  auto rope = make_rope(theta, gqa(spec.layers[0]).head_dim, scaling);
  if (!rope.ok()) return rope.status().within(gguf.key("rope"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, gguf.integer_or("attention.sliding_window", 1, 1 << 28, kWindow));
  for (const char* key : {"attention.sliding_window_pattern", "rope.freq_base_swa", "attn_logit_softcapping",
                          "final_logit_softcapping"}) {
    if (gguf.has(key)) return unsupported(gguf.key(key), "not a parameter of gpt-oss models");
  }
  MixtureOfExperts moe;
  set_common(spec, moe);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).rope = *rope;
    gqa(spec.layers[i]).window = i % 2 == 0 ? static_cast<int32_t>(window) : 0;
  }
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (std::holds_alternative<MixtureOfExperts>(spec.layers[i].feed_forward)) continue;
    return not_found(fmt::format("blk.{}.ffn_gate_inp.weight", i), "the file has no such tensor");
  }
  return spec;
}

constexpr TensorForm kTransposed = TensorForm::kTransposed;
// Experts in MXFP4 come output by output (quantization/mxfp4.cpp), others input by input.
constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"sinks.weight", "self_attn.sinks"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.router"},
    {"experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", kTransposed, true},
    {"experts.*.gate_proj.weight", "mlp.experts.gate_up_proj.weight", TensorForm::kRows, true},
    {"experts.*.gate_proj.bias", "mlp.experts.gate_up_proj_bias", TensorForm::kRows, true},
    {"experts.*.up_proj.weight", "mlp.experts.gate_up_proj", kTransposed, true},
    {"experts.*.up_proj.weight", "mlp.experts.gate_up_proj.weight", TensorForm::kRows, true},
    {"experts.*.up_proj.bias", "mlp.experts.gate_up_proj_bias", TensorForm::kRows, true},
    {"experts.*.down_proj.weight", "mlp.experts.down_proj", kTransposed},
    {"experts.*.down_proj.weight", "mlp.experts.down_proj.weight"},
    {"experts.*.down_proj.bias", "mlp.experts.down_proj_bias"},
};
WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTopNames, {}, kTiedHead}; }

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"sinks", "attn_sinks"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "post_attention_norm"},
    {"router", "ffn_gate_inp"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
};
WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, {}}; }

}  // namespace

const Family kGptOssFamily = {"gpt_oss",           "GptOssForCausalLM", "gpt_oss", "gpt-oss",
                              gpt_oss_from_config, gpt_oss_from_gguf,   hf_names,  gguf_names};

}  // namespace headrace
