// Llama 4, text: layers that see one chunk and rotate neighbouring pairs, among layers without rotation that see
// everything with a temperature by position; the router's weights multiply the experts' inputs.
// Reference: transformers models/llama4.
#include <algorithm>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",          "attention_chunk_size", "attn_scale",
    "attn_temperature_tuning", "floor_scale",          "interleave_moe_layer_step",
    "intermediate_size_mlp",   "layer_types",          "moe_layers",
    "no_rope_layer_interval",  "no_rope_layers",       "num_experts_per_tok",
    "num_local_experts",       "use_qk_norm",
};
constexpr int64_t kMaxSize = int64_t{1} << 22;

// What differs between layers.
struct LayerKind {
  bool rotates = true;
  int32_t chunk = 0;  // 0: the layer sees everything
};

struct Temperature {
  double scale = 0.1;  // 0: none
  int64_t floor_scale = 8192;
};

void set_attention(GqaAttention& attention, const LayerKind& kind, const RopeSpec& rope, bool qk_norm,
                   const Temperature& temperature) {
  attention.rope = RopeSpec();
  attention.chunk = kind.chunk;
  if (kind.rotates) {
    attention.rope = rope;
    attention.rope.interleaved = true;
    attention.qk_norm = qk_norm;
    attention.qk_norm_kind = QkNormKind::kHeadAfterRotationUnweighted;
  } else if (temperature.scale != 0) {
    attention.position_scale = static_cast<float>(temperature.scale);
    attention.position_scale_length = static_cast<int32_t>(temperature.floor_scale);
    attention.position_scale_shift = 1;
  }
}

Result<std::vector<LayerKind>> read_kinds(const ConfigReader& config, size_t num_layers) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> rotates, config.integers("no_rope_layers"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t interval, config.integer_or("no_rope_layer_interval", 1, INT32_MAX, 4));
  HEADRACE_ASSIGN_OR_RETURN(
      const int64_t chunk,
      config.integer_or("attention_chunk_size", 1, 1 << 28, config.contains_null("attention_chunk_size") ? 0 : 8192));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.texts("layer_types"));
  for (const auto& [key, count] :
       {std::pair("no_rope_layers", rotates.size()), std::pair("layer_types", types.size())}) {
    if (count != 0 && count != num_layers) {
      return malformed(config.place_of(key), "{} entries for {} layers", count, num_layers);
    }
  }
  std::vector<LayerKind> out(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    // The key's name says the opposite of what its entries mean.
    out[i].rotates = rotates.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : rotates[i] != 0;
    const bool chunked = types.empty() ? out[i].rotates : types[i] == "chunked_attention";
    if (!types.empty() && !chunked && types[i] != "full_attention") {
      return unsupported(config.place_of("layer_types"), "unknown layer type '{}'", types[i]);
    }
    out[i].chunk = chunked ? static_cast<int32_t>(chunk) : 0;
  }
  return out;
}

MixtureOfExperts router_of_family() {
  MixtureOfExperts moe;
  moe.router.score = RouterScore::kSigmoid;
  moe.weight_inputs = true;
  return moe;
}

Result<ModelSpec> llama4_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  DenseDefaults defaults;
  defaults.num_kv_heads = 8;
  defaults.head_dim = 128;
  defaults.max_position_embeddings = 4096 * 32;
  defaults.norm_eps = 1e-5;
  defaults.experts = true;
  defaults.own_keys = {"no_rope_layers"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "llama4";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 500000.0));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const bool qk_norm, config.boolean_or("use_qk_norm", true));
  Temperature temperature;
  HEADRACE_ASSIGN_OR_RETURN(const bool tuning, config.boolean_or("attn_temperature_tuning", true));
  HEADRACE_ASSIGN_OR_RETURN(temperature.floor_scale, config.integer_or("floor_scale", 1, 1 << 28, 8192));
  HEADRACE_ASSIGN_OR_RETURN(temperature.scale, config.number_or("attn_scale", 0.1));
  if (!tuning) temperature.scale = 0;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<LayerKind> kinds, read_kinds(config, spec.layers.size()));

  MixtureOfExperts moe = router_of_family();
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, config.integer_or("num_local_experts", 1, 1 << 14, 16));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer_or("num_experts_per_tok", 1, experts, 1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t dense_size, config.integer_or("intermediate_size_mlp", 1, kMaxSize, 16384));
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  moe.router.num_experts = static_cast<int32_t>(experts);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.intermediate_size = moe.shared_intermediate_size = dense(spec.layers[0]).intermediate_size;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    set_attention(attention, kinds[i], rope, qk_norm, temperature);
    attention.qkv_bias = attention.output_bias = bias;
    dense(spec.layers[i]).activation = moe.activation;
    dense(spec.layers[i]).intermediate_size = static_cast<int32_t>(dense_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("interleave_moe_layer_step", 1, INT32_MAX, 1));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> listed, config.integers("moe_layers"));
  set_experts(spec, moe, [&](size_t layer) {
    const auto index = static_cast<int64_t>(layer);
    if (!config.has("moe_layers")) return (index + 1) % step == 0;
    return std::find(listed.begin(), listed.end(), index) != listed.end();
  });
  return spec;
}

// GGUF has no key for the chunk, the layers without rotation, the temperature and the norm: published values.
Result<ModelSpec> llama4_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.experts = true, .more_keys = moe_gguf_keys()}));
  spec.architecture = "llama4";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, gguf.integer("expert_count", 1, 1 << 14));
  const bool qk_norm = experts != 128;  // Scout has it, Maverick does not
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool rotates = (i + 1) % 4 != 0;
    const RopeSpec rope = gqa(spec.layers[i]).rope;
    set_attention(gqa(spec.layers[i]), {rotates, rotates ? 8192 : 0}, rope, qk_norm, {});
  }
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, router_of_family()));
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "feed_forward.gate_proj"},
    {"up_proj", "feed_forward.up_proj"},
    {"down_proj", "feed_forward.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "feed_forward.router"},
    {"experts.*.gate_proj.weight", "feed_forward.experts.gate_up_proj", TensorForm::kTransposed},
    {"experts.*.up_proj.weight", "feed_forward.experts.gate_up_proj", TensorForm::kTransposed},
    {"experts.*.down_proj.weight", "feed_forward.experts.down_proj", TensorForm::kTransposed},
    {"shared.gate_proj", "feed_forward.shared_expert.gate_proj"},
    {"shared.up_proj", "feed_forward.shared_expert.up_proj"},
    {"shared.down_proj", "feed_forward.shared_expert.down_proj"},
};
WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }

}  // namespace

const Family kLlama4Family = {"llama4",           "Llama4ForCausalLM", "llama4_text", "llama4",
                              llama4_from_config, llama4_from_gguf,    hf_names,      moe_gguf_names};

}  // namespace headrace
