// MiMo-V2-Flash: windowed layers with sinks and twice the KV heads, values narrower than keys, part of each head
// rotates, DeepSeek-V3's router without shared experts. Reference: transformers models/mimo_v2_flash.
#include <array>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",
    "attention_value_scale",
    "layer_types",
    "mlp_layer_types",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "sliding_window",
    "topk_group",
    "v_head_dim",
};
// Of the makers' own config: numbers for the kinds of layers, and what follows from the rest once more.
constexpr std::string_view kMakersKeys[] = {
    "add_full_attention_sink_bias",
    "add_swa_attention_sink_bias",
    "attention_chunk_size",
    "hybrid_layer_pattern",
    "layernorm_epsilon",
    "moe_layer_freq",
    "n_shared_experts",
    "scoring_func",
    "sliding_window_size",
    "swa_head_dim",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_rope_theta",
    "swa_v_head_dim",
    "topk_method",
};
constexpr double kFullTheta = 5e6, kSlidingTheta = 1e4;
constexpr double kPartial = 0.334;
constexpr int64_t kPattern = 6;  // without layer_types: the first layer and every sixth see everything

Result<RopeSpec> read_layer_rope(const ConfigReader& ropes, const char* type, double theta, const ModelSpec& spec,
                                 int32_t head_dim) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader own, ropes.object(type));
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig rope,
                            read_rope_parameters(own, theta, spec.max_position_embeddings, kPartial));
  auto out = make_rope(rope.theta, static_cast<int32_t>(head_dim * rope.partial), rope.scaling);
  if (!out.ok()) return out.status().within(ropes.place_of(type));
  return out;
}

// What the makers' keys say of a model that the others describe.
Status check_makers_keys(const ConfigReader& config, const GqaAttention& attention, int64_t v_dim) {
  const nlohmann::json* const eps = config.find("rms_norm_eps");
  const bool newer = config.has("rope_parameters");
  const auto or_none = [&](double value) { return newer ? nlohmann::json() : nlohmann::json(value); };
  const std::pair<const char*, nlohmann::json> kSame[] = {
      {"add_full_attention_sink_bias", false},
      {"add_swa_attention_sink_bias", true},
      {"layernorm_epsilon", eps != nullptr ? *eps : nlohmann::json(1e-5)},
      {"n_shared_experts", 0},
      {"partial_rotary_factor", or_none(kPartial)},
      {"rope_scaling", nullptr},
      {"rope_theta", or_none(kFullTheta)},
      {"scoring_func", "sigmoid"},
      {"swa_head_dim", attention.head_dim},
      {"swa_num_attention_heads", attention.num_heads},
      {"swa_num_key_value_heads", 2 * attention.num_kv_heads},
      {"swa_rope_theta", or_none(kSlidingTheta)},
      {"swa_v_head_dim", v_dim},
      {"topk_method", "noaux_tc"},
  };
  for (const auto& [key, value] : kSame) HEADRACE_RETURN_IF_ERROR(config.only(key, value));
  const nlohmann::json* const window = config.find("sliding_window_size");
  return config.only("attention_chunk_size", window != nullptr ? *window : nlohmann::json());
}

// A number for each layer, 0 or 1, in place of `names`, or beside them and saying the same.
Status read_numbers(const ConfigReader& config, const char* key, const char* names, size_t num_layers,
                    std::vector<bool>& out) {
  if (!config.has(key)) return {};
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, config.integers(key));
  if (numbers.size() != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", numbers.size(), num_layers);
  }
  std::vector<bool> flags;
  for (const int64_t number : numbers) {
    if (number != 0 && number != 1) return unsupported(config.place_of(key), "unknown kind {}", number);
    flags.push_back(number == 1);
  }
  if (config.has(names) && flags != out) return malformed(config.place_of(key), "{} says something else", names);
  out = std::move(flags);
  return {};
}

// The makers' number leaves the row itself out.
Result<int64_t> read_window(const ConfigReader& config) {
  if (!config.has("sliding_window_size")) return config.integer_or("sliding_window", 1, 1 << 28, 129);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t before, config.integer("sliding_window_size", 1, 1 << 28));
  HEADRACE_RETURN_IF_ERROR(config.only("sliding_window", before));
  return before + 1;
}

Result<ModelSpec> mimo_from_config(const ConfigReader& config, const TensorFile&) {
  std::vector<std::string_view> keys(std::begin(kOwnKeys), std::end(kOwnKeys));
  keys.insert(keys.end(), std::begin(kMakersKeys), std::end(kMakersKeys));
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, keys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 192;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "mimo_v2_flash";
  const int32_t head_dim = gqa(spec.layers[0]).head_dim;
  if (2 * gqa(spec.layers[0]).num_kv_heads > gqa(spec.layers[0]).num_heads) {
    return malformed(config.place_of("num_key_value_heads"),
                     "layers with windows have twice {}, more than the {} of queries", gqa(spec.layers[0]).num_kv_heads,
                     gqa(spec.layers[0]).num_heads);
  }
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader ropes, config.object("rope_parameters"));
  HEADRACE_RETURN_IF_ERROR(ropes.check_known(std::to_array<std::string_view>({"full_attention", "sliding_attention"})));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec full, read_layer_rope(ropes, "full_attention", kFullTheta, spec, head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec local,
                            read_layer_rope(ropes, "sliding_attention", kSlidingTheta, spec, head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t v_dim, config.integer_or("v_head_dim", 1, head_dim, 128));
  HEADRACE_RETURN_IF_ERROR(check_makers_keys(config, gqa(spec.layers[0]), v_dim));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, read_window(config));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  const double default_scale = config.contains_null("attention_value_scale") ? 1.0 : 0.707;
  HEADRACE_ASSIGN_OR_RETURN(const double value_scale, config.number_or("attention_value_scale", default_scale));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  HEADRACE_RETURN_IF_ERROR(read_numbers(config, "hybrid_layer_pattern", "layer_types", spec.layers.size(), windowed));
  const GroupedExpertDefaults expert_defaults{256, 8, 2048, 0};
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_grouped_experts(config, expert_defaults));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    const bool slides = windowed.empty() ? i != 0 && (static_cast<int64_t>(i) + 1) % kPattern != 0 : bool{windowed[i]};
    attention.rope = slides ? local : full;
    attention.window = slides ? static_cast<int32_t>(window) : 0;
    attention.sinks = slides;
    if (slides) attention.num_kv_heads *= 2;
    attention.v_dim = static_cast<int32_t>(v_dim);
    attention.value_scale = static_cast<float>(value_scale);
    attention.qkv_bias = bias;
    dense(spec.layers[i]).activation = moe.activation;
  }
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> sparse, read_sparse_layers(config, spec.layers.size(), 1));
  HEADRACE_RETURN_IF_ERROR(read_numbers(config, "moe_layer_freq", "mlp_layer_types", spec.layers.size(), sparse));
  set_experts(spec, moe, [&](size_t layer) { return sparse[layer]; });
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"sinks.weight", "self_attn.attention_sink_bias"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.gate"},
    {"router.correction", "mlp.gate.e_score_correction_bias"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
};
WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kMimoV2FlashFamily = {
    "mimo_v2_flash", "MiMoV2FlashForCausalLM", "mimo_v2_flash", "", mimo_from_config, nullptr, hf_names, nullptr};

}  // namespace headrace
