// Phi-3 and Phi-4-mini: Llama with q, k and v in one tensor, gate and up in another, and LongRoPE: short and long
// sequences rotate differently. Reference: transformers models/phi3.
#include "base/format_full.h"
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"sliding_window", "attention_bias", "mlp_bias", "lm_head_bias",
                                         // Of training.
                                         "resid_pdrop", "embd_pdrop",
                                         // Of the makers' own code, which says by one that it does without.
                                         "full_attn_mod", "interpolate_factor"};

Result<ModelSpec> phi3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("lm_head_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("full_attn_mod", 1));
  HEADRACE_RETURN_IF_ERROR(config.only("interpolate_factor", 1));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "phi3";
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, 10000.0, 1.0));
  if (rope.type != "default" && rope.type != "longrope") {
    return unsupported(config.place_of("rope_parameters/rope_type"), "'{}' is no rope type of phi3", rope.type);
  }
  if (rope.type == "longrope" && !config.has("original_max_position_embeddings")) {
    return malformed(config.place_of("original_max_position_embeddings"), "missing");
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 0));
  LayerChoices choices;
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).window = static_cast<int32_t>(window);
  }
  return spec;
}

Result<std::vector<double>> read_factors(const GgufFile& file, const char* name) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) return std::vector<double>();
  if (entry->dtype != DType::kF32 || entry->shape.size() != 1 || entry->shape[0] > (1 << 16)) {
    return malformed(name, "expected a vector of F32, got {} [{}]", dtype_name(entry->dtype),
                     fmt::join(entry->shape, ", "));
  }
  std::vector<float> factors(entry->shape[0]);
  HEADRACE_RETURN_IF_ERROR(file.read(*entry, 0, std::as_writable_bytes(std::span(factors))));
  return std::vector<double>(factors.begin(), factors.end());
}

Result<ModelSpec> phi3_from_gguf(const GgufReader& gguf) {
  constexpr std::string_view kRead[] = {"attention.sliding_window"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf, kRead));
  spec.architecture = "phi3";
  RopeSpec rope = gqa(spec.layers[0]).rope;
  RopeScaling scaling;
  HEADRACE_ASSIGN_OR_RETURN(scaling.short_factors, read_factors(gguf.file(), "rope_factors_short.weight"));
  HEADRACE_ASSIGN_OR_RETURN(scaling.long_factors, read_factors(gguf.file(), "rope_factors_long.weight"));
  if (!scaling.short_factors.empty() || !scaling.long_factors.empty()) {
    scaling.type = "longrope";
    HEADRACE_ASSIGN_OR_RETURN(const int64_t original, gguf.integer("rope.scaling.original_context_length", 1, 1 << 28));
    scaling.original_max_positions = static_cast<double>(original);
    scaling.factor = static_cast<double>(spec.max_position_embeddings) / scaling.original_max_positions;
    if (gguf.has("rope.scaling.attn_factor")) {
      HEADRACE_ASSIGN_OR_RETURN(scaling.attention_factor, gguf.positive_or("rope.scaling.attn_factor", 1.0));
    }
    auto scaled = make_rope(rope.theta, rope.rotary_dim, scaling);
    if (!scaled.ok()) return scaled.status().within(gguf.key("rope"));
    rope = scaled.take();
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, gguf.integer_or("attention.sliding_window", 0, 1 << 28, 0));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = rope;
    gqa(layer).window = static_cast<int32_t>(window);
    dense(layer).gated = true;
  }
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_qkv"},    {"k_proj", "attn_qkv"},          {"v_proj", "attn_qkv"},
    {"o_proj", "attn_output"}, {"gate_proj", "ffn_up"},         {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"}, {"attention_norm", "attn_norm"}, {"feed_forward_norm", "ffn_norm"},
};
// Read into the frequencies.
constexpr std::string_view kGgufIgnored[] = {"rope_factors_short.weight", "rope_factors_long.weight"};

WeightNaming gguf_names() {
  WeightNaming naming = dense_gguf_names();
  naming.layer = kGgufLayer;
  naming.ignored_suffixes = kGgufIgnored;
  return naming;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.qkv_proj"},
    {"k_proj", "self_attn.qkv_proj"},
    {"v_proj", "self_attn.qkv_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"gate_proj", "mlp.gate_up_proj"},
    {"up_proj", "mlp.gate_up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
};

WeightNaming hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kHfSurplus}; }

}  // namespace

const Family kPhi3Family = {"phi3",           "Phi3ForCausalLM", "phi3",   "phi3",
                            phi3_from_config, phi3_from_gguf,    hf_names, gguf_names};

}  // namespace headrace
