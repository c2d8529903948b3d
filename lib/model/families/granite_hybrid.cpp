// Granite 4 hybrids: Mamba-2 layers, attention in some, experts beside a feed-forward that every row visits, or that
// feed-forward alone. Reference: transformers models/granitemoehybrid.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/granite.h"
#include "model/families/moe_decoder.h"
#include "model/families/recurrent_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"attention_bias", "attention_multiplier", "embedding_multiplier",
                                         "layer_types", "layers_block_type", "logits_scaling", "mamba_conv_bias",
                                         "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand",
                                         "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "num_experts_per_tok",
                                         "num_local_experts", "position_embedding_type", "residual_multiplier",
                                         "shared_intermediate_size", "time_step_limit", "normalization_function",
                                         // How the recurrence is computed, and initial values of training.
                                         "mamba_chunk_size", "init_method"};

Result<Mamba2> read_mamba(const ConfigReader& config, const ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t expand, config.integer_or("mamba_expand", 1, 64, 2));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("mamba_n_heads", 1, 1 << 14, 128));
  const int64_t inner = expand * spec.hidden_size;
  if (inner % heads != 0) {
    return malformed(config.place_of("mamba_n_heads"), "{} channels are no multiple of {}", inner, heads);
  }
  if (const auto* stated = config.find("mamba_d_head"); stated != nullptr && *stated != "auto") {
    HEADRACE_RETURN_IF_ERROR(config.only("mamba_d_head", inner / heads));
  }
  Mamba2 mamba;
  mamba.num_heads = static_cast<int32_t>(heads);
  mamba.head_dim = static_cast<int32_t>(inner / heads);
  mamba.num_groups = 1;
  mamba.state_size = 256;
  mamba.kernel = 4;
  mamba.conv_bias = true;
  const Mamba2Keys keys{nullptr,        nullptr,           "mamba_n_groups", "mamba_d_state",
                        "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias"};
  HEADRACE_RETURN_IF_ERROR(read_mamba2(config, keys, mamba));
  HEADRACE_RETURN_IF_ERROR(read_step_limits(config, mamba));
  return mamba;
}

// Both feed-forwards of a layer, or, without experts, the one.
Result<FeedForwardSpec> read_feed_forward(const ConfigReader& config, const ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 0, 1 << 14, 8));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("shared_intermediate_size", 1, 1 << 22, 1024));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", "silu"));
  if (experts == 0) {
    DenseFeedForward out;
    out.intermediate_size = static_cast<int32_t>(shared);
    out.activation = activation;
    return FeedForwardSpec(out);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, config.integer_or("num_experts_per_tok", 1, experts, 2));
  MixtureOfExperts moe;
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(used);
  moe.router.normalize = true;
  moe.intermediate_size = std::get<DenseFeedForward>(spec.layers[0].feed_forward).intermediate_size;
  moe.shared_intermediate_size = static_cast<int32_t>(shared);
  moe.activation = activation;
  return FeedForwardSpec(moe);
}

Result<ModelSpec> granite_hybrid_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("normalization_function", "rmsnorm"));
  DenseDefaults defaults{32000, 4096, 11008, 32, 32, -1};
  defaults.max_position_embeddings = 2048;
  defaults.own_keys.assign(std::begin(kGraniteFactors), std::end(kGraniteFactors));
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "granitemoehybrid";
  GqaAttention attention = gqa(spec.layers[0]);
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  attention.qkv_bias = attention.output_bias = bias;
  HEADRACE_ASSIGN_OR_RETURN(const std::string positions, config.text_or("position_embedding_type", "nope"));
  if (positions == "rope") {
    HEADRACE_ASSIGN_OR_RETURN(attention.rope, read_rotation(config, spec, 10000.0));
  } else if (positions != "nope") {
    return unsupported(config.place_of("position_embedding_type"), "unknown type '{}'", positions);
  }
  HEADRACE_ASSIGN_OR_RETURN(const Mamba2 mamba, read_mamba(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const FeedForwardSpec feed_forward, read_feed_forward(config, spec));
  std::vector<bool> attends(spec.layers.size());
  for (const char* key : {"layer_types", "layers_block_type"}) {
    if (config.has(key)) {
      HEADRACE_ASSIGN_OR_RETURN(attends, read_attending(config, spec.layers.size(), key));
    }
  }
  for (size_t i = 0; i < attends.size(); ++i) {
    spec.layers[i].feed_forward = feed_forward;
    spec.layers[i].attention = attends[i] ? AttentionSpec(attention) : AttentionSpec(mamba);
  }
  HEADRACE_ASSIGN_OR_RETURN(const GraniteFactors factors, read_granite_factors(config));
  HEADRACE_RETURN_IF_ERROR(set_granite_factors(spec, factors));
  return spec;
}

Result<ModelSpec> granite_hybrid_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_base_gguf(gguf, hybrid_gguf_keys(kGraniteGgufFactors)));
  spec.architecture = "granitemoehybrid";
  HEADRACE_ASSIGN_OR_RETURN(const Mamba2 mamba, read_gguf_mamba2(gguf));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads, read_gguf_kv_heads(gguf, spec));
  // The key's name has another meaning elsewhere: here it says whether attention rotates.
  HEADRACE_ASSIGN_OR_RETURN(const bool rotates, gguf.file().get_bool_or(gguf.key("rope.scaling.finetuned"), true));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    DenseFeedForward feed_forward;  // unless there are experts
    feed_forward.intermediate_size = gguf_feed_forward_size(gguf, i);
    layer.feed_forward = feed_forward;
    layer.feed_forward_norm = true;
    layer.attention = mamba;
    if (kv_heads[i] == 0) continue;
    HEADRACE_ASSIGN_OR_RETURN(GqaAttention attention, read_gguf_attention(gguf, spec, kv_heads[i]));
    if (!rotates) attention.rope = RopeSpec();
    attention.rope.interleaved = rotates;
    layer.attention = attention;
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, gguf.integer_or("expert_count", 0, 1 << 14, 0));
  if (experts == 0 && std::get<DenseFeedForward>(spec.layers[0].feed_forward).intermediate_size == 0) {
    return malformed(gguf.key("expert_count"), "none, and feed_forward_length has no size");
  }
  MixtureOfExperts moe;
  moe.router.normalize = true;
  if (experts > 0) HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  for (size_t i = 0; i < spec.layers.size() && experts > 0; ++i) {
    if (std::holds_alternative<MixtureOfExperts>(spec.layers[i].feed_forward)) continue;
    return not_found(fmt::format("blk.{}.ffn_gate_inp.weight", i), "the file has no such tensor");
  }
  HEADRACE_ASSIGN_OR_RETURN(const GraniteFactors factors, read_granite_factors(gguf));
  HEADRACE_RETURN_IF_ERROR(set_granite_factors(spec, factors));
  return spec;
}

constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"mixer_z", "mamba.in_proj"},
    {"mixer_xbc", "mamba.in_proj"},
    {"mixer_step", "mamba.in_proj"},
    {"conv", "mamba.conv1d"},
    {"step.bias", "mamba.dt_bias"},
    {"rate", "mamba.A_log"},
    {"skip", "mamba.D"},
    {"mixer_norm", "mamba.norm"},
    {"mixer_out", "mamba.out_proj"},
    {"router", "block_sparse_moe.router.layer"},
    {"experts.*.gate_proj", "block_sparse_moe.input_linear"},
    {"experts.*.up_proj", "block_sparse_moe.input_linear"},
    {"experts.*.down_proj", "block_sparse_moe.output_linear"},
    {"shared.gate_proj", "shared_mlp.input_linear"},
    {"shared.up_proj", "shared_mlp.input_linear"},
    {"shared.down_proj", "shared_mlp.output_linear"},
    {"gate_proj", "shared_mlp.input_linear"},
    {"up_proj", "shared_mlp.input_linear"},
    {"down_proj", "shared_mlp.output_linear"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};
WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kGraniteHybridFamily = {
    "granitemoehybrid",         "GraniteMoeHybridForCausalLM", "granitemoehybrid", "granitehybrid",
    granite_hybrid_from_config, granite_hybrid_from_gguf,      hf_names,           hybrid_gguf_names};

}  // namespace headrace
