// Mamba and Mamba-2. Reference: transformers models/mamba, models/mamba2.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kMambaKeys[] = {
    "expand", "state_size", "conv_kernel", "time_step_rank", "use_conv_bias", "use_bias", "layer_norm_epsilon",
    // Initial values of training.
    "rescale_prenorm_residual", "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min",
    "time_step_scale",
    // How the recurrence is computed, and the precision of sums, which is float32 here.
    "residual_in_fp32", "use_associative_scan", "use_mambapy", "fused_add_norm",
    // Of the first release, which the class in transformers does not read.
    "d_inner", "d_model", "n_layer", "pad_vocab_size_multiple", "rms_norm", "ssm_cfg"};
constexpr std::string_view kMamba2Keys[] = {
    "expand", "state_size", "conv_kernel", "n_groups", "num_heads", "use_conv_bias", "use_bias", "layer_norm_epsilon",
    "rms_norm", "time_step_limit",
    // Initial values of training.
    "rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank",
    // How the recurrence is computed, and the precision of sums, which is float32 here.
    "chunk_size", "residual_in_fp32",
    // Read by nothing: the class has the gate before the norm in any case.
    "norm_before_gate"};

Result<ModelSpec> mamba_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kMambaKeys));
  BaseDefaults defaults{50280, 768, 32, kUnboundedContext, "layer_norm_epsilon", 1e-5, true};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_config(config, defaults));
  spec.architecture = "mamba";
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t expand, config.integer_or("expand", 1, 64, 2));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t states, config.integer_or("state_size", 1, 1 << 12, 16));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, config.integer_or("conv_kernel", 2, kMostConvKernel, 4));
  Mamba mamba;
  mamba.step_rank = (spec.hidden_size + 15) / 16;
  if (const auto* rank = config.find("time_step_rank"); rank != nullptr && *rank != "auto") {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t stated, config.integer("time_step_rank", 1, 1 << 20));
    mamba.step_rank = static_cast<int32_t>(stated);
  }
  // Where both are stated the number of channels wins, as in the reference.
  HEADRACE_ASSIGN_OR_RETURN(const int64_t channels,
                            config.integer_or("intermediate_size", 1, 1 << 24, expand * spec.hidden_size));
  mamba.channels = static_cast<int32_t>(channels);
  mamba.state_size = static_cast<int32_t>(states);
  mamba.kernel = static_cast<int32_t>(kernel);
  HEADRACE_ASSIGN_OR_RETURN(mamba.conv_bias, config.boolean_or("use_conv_bias", true));
  HEADRACE_ASSIGN_OR_RETURN(mamba.bias, config.boolean_or("use_bias", false));
  for (LayerSpec& layer : spec.layers) layer.attention = mamba;
  return spec;
}

constexpr std::string_view kGgufKeys[] = {"feed_forward_length", "attention.head_count", "ssm.conv_kernel",
                                          "ssm.inner_size",      "ssm.state_size",       "ssm.time_step_rank",
                                          "ssm.group_count",     "ssm.dt_b_c_rms"};

Result<ModelSpec> mamba_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, kGgufKeys));
  spec.architecture = "mamba";
  HEADRACE_ASSIGN_OR_RETURN(const bool norms, gguf.file().get_bool_or(gguf.key("ssm.dt_b_c_rms"), false));
  if (norms) return unsupported(gguf.key("ssm.dt_b_c_rms"), "norms of steps, B and C are not supported here");
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, gguf.integer("ssm.conv_kernel", 2, kMostConvKernel));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, gguf.integer("ssm.inner_size", 1, 1 << 20));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t states, gguf.integer("ssm.state_size", 1, 1 << 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rank, gguf.integer("ssm.time_step_rank", 1, 1 << 20));
  Mamba mamba;
  mamba.channels = static_cast<int32_t>(inner);
  mamba.state_size = static_cast<int32_t>(states);
  mamba.step_rank = static_cast<int32_t>(rank);
  mamba.kernel = static_cast<int32_t>(kernel);
  mamba.conv_bias = gguf.file().find("blk.0.ssm_conv1d.bias") != nullptr;
  mamba.bias = gguf.file().find("blk.0.ssm_in.bias") != nullptr;
  mamba.log_rates = false;
  for (LayerSpec& layer : spec.layers) layer.attention = mamba;
  return spec;
}

Result<ModelSpec> mamba2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kMamba2Keys));
  BaseDefaults defaults{32768, 4096, 64, kUnboundedContext, "layer_norm_epsilon", 1e-5, false};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_config(config, defaults));
  spec.architecture = "mamba2";
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("rms_norm", true));
  Mamba2 mamba{.num_heads = 128, .head_dim = 64, .state_size = 128, .num_groups = 8, .kernel = 4, .conv_bias = true};
  HEADRACE_RETURN_IF_ERROR(read_mamba2(
      config, {"num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias"}, mamba));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t expand, config.integer_or("expand", 1, 64, 2));
  if (expand * spec.hidden_size != mamba.inner()) {
    return malformed(config.place_of("expand"), "{} times {} are no {} heads of {}", expand, spec.hidden_size,
                     mamba.num_heads, mamba.head_dim);
  }
  HEADRACE_RETURN_IF_ERROR(read_step_limits(config, mamba));
  for (LayerSpec& layer : spec.layers) layer.attention = mamba;
  return spec;
}

Result<ModelSpec> mamba2_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, kGgufKeys));
  spec.architecture = "mamba2";
  HEADRACE_ASSIGN_OR_RETURN(const Mamba2 mamba, read_gguf_mamba2(gguf));
  for (LayerSpec& layer : spec.layers) layer.attention = mamba;
  return spec;
}

constexpr NamePair kMambaLayer[] = {
    {"mixer_x", "mixer.in_proj"},    {"mixer_z", "mixer.in_proj"}, {"conv", "mixer.conv1d"},
    {"step_in", "mixer.x_proj"},     {"state_b", "mixer.x_proj"},  {"state_c", "mixer.x_proj"},
    {"step", "mixer.dt_proj"},       {"rate", "mixer.A_log"},      {"skip", "mixer.D"},
    {"mixer_out", "mixer.out_proj"}, {"attention_norm", "norm"},
};
constexpr NamePair kMamba2Layer[] = {
    {"mixer_z", "mixer.in_proj"}, {"mixer_xbc", "mixer.in_proj"}, {"mixer_step", "mixer.in_proj"},
    {"conv", "mixer.conv1d"},     {"step.bias", "mixer.dt_bias"}, {"rate", "mixer.A_log"},
    {"skip", "mixer.D"},          {"mixer_norm", "mixer.norm"},   {"mixer_out", "mixer.out_proj"},
    {"attention_norm", "norm"},
};
constexpr NamePair kHfTop[] = {
    {"embed", "backbone.embeddings"}, {"final_norm", "backbone.norm_f"}, {"lm_head", "lm_head"}};

constexpr NamePair kGgufLayer[] = {
    {"mixer_x", "ssm_in"},    {"mixer_z", "ssm_in"},
    {"mixer_xbc", "ssm_in"},  {"mixer_step", "ssm_in"},
    {"conv", "ssm_conv1d"},   {"step_in", "ssm_x"},
    {"state_b", "ssm_x"},     {"state_c", "ssm_x"},
    {"step", "ssm_dt"},       {"rate", "ssm_a"},
    {"skip", "ssm_d"},        {"mixer_norm", "ssm_norm"},
    {"mixer_out", "ssm_out"}, {"attention_norm", "attn_norm"},
};

WeightNaming mamba_names(const TensorFile&) { return {"backbone.layers.", kMambaLayer, kHfTop, {}, kTiedHead}; }
WeightNaming mamba2_names(const TensorFile&) { return {"backbone.layers.", kMamba2Layer, kHfTop, {}, kTiedHead}; }
WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, {}}; }

}  // namespace

const Family kMambaFamily = {"mamba",           "MambaForCausalLM", "mamba",     "mamba",
                             mamba_from_config, mamba_from_gguf,    mamba_names, gguf_names};
const Family kMamba2Family = {"mamba2",           "Mamba2ForCausalLM", "mamba2",     "mamba2",
                              mamba2_from_config, mamba2_from_gguf,    mamba2_names, gguf_names};

}  // namespace headrace
