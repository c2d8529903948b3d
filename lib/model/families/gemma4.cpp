// Gemma 4, text: heads of full layers are wider and rotate in part, layers may have inputs of their own, see the keys and
// values of others, and have experts beside the feed-forward. Reference: transformers models/gemma4. Norm weights are
// stored whole.
#include <array>
#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/gemma_layers.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_k_eq_v",      "enable_moe_block", "global_head_dim",
    "moe_intermediate_size", "num_experts",      "num_global_key_value_heads",
    "per_layer_config",      "top_k_experts",    "use_bidirectional_attention",
    "use_double_wide_mlp",
};
constexpr std::string_view kWrapperKeys[] = {
    "text_config",
    // Encoders of images and audio, which are not read, and their tokens.
    "vision_config",
    "audio_config",
    "boi_token_id",
    "eoi_token_id",
    "image_token_id",
    "video_token_id",
    "boa_token_id",
    "eoa_token_index",
    "audio_token_id",
    "eoa_token_id",
    "vision_soft_tokens_per_image",
};

// per_layer_config names layers by number; without it, full layers have global_head_dim and
// num_global_key_value_heads, the latter where values are keys.
Status read_shapes(const ConfigReader& config, ModelSpec& spec, const std::vector<bool>& windowed,
                   bool values_from_keys) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t full_dim, config.integer_or("global_head_dim", 1, 1 << 12, 512));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t full_heads, config.integer_or("num_global_key_value_heads", 1, 1 << 14, 0));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader layers, config.object("per_layer_config"));
  std::vector<std::string> numbers;
  for (size_t i = 0; i < spec.layers.size(); ++i) numbers.push_back(std::to_string(i));
  HEADRACE_RETURN_IF_ERROR(layers.check_known(std::vector<std::string_view>(numbers.begin(), numbers.end())));
  const bool by_layer = config.has("per_layer_config");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    int64_t head_dim = attention.head_dim, heads = attention.num_kv_heads;
    if (by_layer) {
      HEADRACE_ASSIGN_OR_RETURN(const ConfigReader layer, layers.object(numbers[i]));
      HEADRACE_RETURN_IF_ERROR(layer.check_known(std::to_array<std::string_view>({"head_dim", "num_key_value_heads"})));
      HEADRACE_ASSIGN_OR_RETURN(head_dim, layer.integer_or("head_dim", 1, 1 << 12, head_dim));
      HEADRACE_ASSIGN_OR_RETURN(heads, layer.integer_or("num_key_value_heads", 1, 1 << 14, heads));
    } else if (!windowed[i]) {
      head_dim = full_dim;
      if (values_from_keys && full_heads > 0) heads = full_heads;
    }
    attention.head_dim = static_cast<int32_t>(head_dim);
    attention.num_kv_heads = static_cast<int32_t>(heads);
    attention.values_from_keys = values_from_keys && !windowed[i];
  }
  return {};
}

Result<GemmaRotations> read_rotations(const ConfigReader& config, int64_t max_positions) {
  GemmaRotations out;
  out.full.theta = 1e6;
  out.full.scaling.type = "proportional";
  out.full.scaling.rotating_share = 0.25;
  out.sliding.theta = 1e4;
  HEADRACE_RETURN_IF_ERROR(config.only("rope_scaling", nullptr));
  HEADRACE_RETURN_IF_ERROR(config.only("rope_theta", nullptr));
  if (!config.has("rope_parameters")) return out;
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  HEADRACE_RETURN_IF_ERROR(
      nested.check_known(std::to_array<std::string_view>({"full_attention", "sliding_attention"})));
  for (const auto& [kind, rotation] :
       {std::pair("full_attention", &out.full), std::pair("sliding_attention", &out.sliding)}) {
    if (!nested.has(kind)) return malformed(nested.place_of(kind), "missing");
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader own, nested.object(kind));
    HEADRACE_ASSIGN_OR_RETURN(*rotation, read_rope_parameters(own, rotation->theta, max_positions));
  }
  return out;
}

void set_experts(ModelSpec& spec, int64_t count, int64_t top_k, int64_t inner) {
  MixtureOfExperts moe;
  moe.router.num_experts = static_cast<int32_t>(count);
  moe.router.top_k = static_cast<int32_t>(top_k);
  moe.router.normalize = moe.router.expert_scale = true;
  moe.intermediate_size = static_cast<int32_t>(inner);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden_size)));
  for (LayerSpec& layer : spec.layers) {
    moe.activation = dense(layer).activation;
    layer.feed_forward = DenseBesideExperts{dense(layer), moe, scale};
  }
}

Status read_experts(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, config.integer("num_experts", 1, 1 << 14));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, config.integer("top_k_experts", 1, count));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer("moe_intermediate_size", 1, 1 << 22));
  set_experts(spec, count, top_k, inner);
  return {};
}

Result<ModelSpec> gemma4_text_from_config(const ConfigReader& config, const TensorFile&) {
  std::vector<std::string_view> keys(std::begin(kOwnKeys), std::end(kOwnKeys));
  keys.insert(keys.end(), std::begin(kGemmaLayerKeys), std::end(kGemmaLayerKeys));
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, keys));
  DenseDefaults defaults{262144, 2304, 9216, 30, 8, 4, 256, 131072, 1e-6, true};
  defaults.experts = true;
  defaults.own_keys = {"use_bidirectional_attention"};
  // Images alone would be seen both ways, where it says "vision".
  HEADRACE_ASSIGN_OR_RETURN(const std::string both_ways, config.text_or("use_bidirectional_attention", "vision"));
  if (both_ways != "vision") return unsupported(config.place_of("use_bidirectional_attention"), "'{}'", both_ways);
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "gemma4";
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_gemma_layers(config, spec, 6));
  if (windowed.back()) return unsupported(config.place_of("layer_types"), "the last layer has to see everything");
  HEADRACE_ASSIGN_OR_RETURN(const bool values_from_keys, config.boolean_or("attention_k_eq_v", false));
  HEADRACE_RETURN_IF_ERROR(read_shapes(config, spec, windowed, values_from_keys));
  HEADRACE_ASSIGN_OR_RETURN(const GemmaRotations rotations, read_rotations(config, spec.max_position_embeddings));
  HEADRACE_RETURN_IF_ERROR(set_rotations(spec, windowed, rotations, config.place_of("rope_parameters")));
  HEADRACE_RETURN_IF_ERROR(read_kv_sharing(config, spec, windowed, 0));
  HEADRACE_ASSIGN_OR_RETURN(const bool double_wide, config.boolean_or("use_double_wide_mlp", false));
  for (LayerSpec& layer : spec.layers) {
    layer.output_scale = true;
    if (double_wide && gqa(layer).kv_layer >= 0) dense(layer).intermediate_size *= 2;
  }
  HEADRACE_RETURN_IF_ERROR(read_per_layer_inputs(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const bool experts, config.boolean_or("enable_moe_block", false));
  if (experts) HEADRACE_RETURN_IF_ERROR(read_experts(config, spec));
  return spec;
}

Result<ModelSpec> gemma4_from_config(const ConfigReader& config, const TensorFile& weights) {
  return read_wrapped_text(config, kWrapperKeys, weights, gemma4_text_from_config);
}

constexpr std::string_view kGgufKeys[] = {
    "attention.key_length_swa",         "attention.shared_kv_layers", "attention.value_length_swa",
    "embedding_length_per_layer_input", "expert_feed_forward_length", "rope.dimension_count_swa",
};

// The factors of rope_freqs.weight, endless where dims stand still, are those of full layers.
Result<ModelSpec> gemma4_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec,
                            read_dense_gguf(gguf, {.experts = true, .more_keys = kGgufKeys, .by_layer = true}));
  spec.architecture = "gemma4";
  HEADRACE_RETURN_IF_ERROR(read_gguf_windows(gguf, spec, 6));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t sliding_dim, gguf.integer("attention.key_length_swa", 1, 1 << 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value_dim,
                            gguf.integer_or("attention.value_length_swa", 1, 1 << 12, sliding_dim));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rotating,
                            gguf.integer_or("rope.dimension_count_swa", 1, 1 << 12, sliding_dim));
  if (value_dim != sliding_dim || rotating != sliding_dim) {
    return unsupported(gguf.key("attention.key_length_swa"), "{}, of values {}, rotating {}", sliding_dim, value_dim,
                       rotating);
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    if (attention.window > 0) attention.head_dim = static_cast<int32_t>(sliding_dim);
    attention.values_from_keys = gguf.file().find(fmt::format("blk.{}.attn_v.weight", i)) == nullptr;
    spec.layers[i].output_scale = gguf.file().find(fmt::format("blk.{}.layer_output_scale.weight", i)) != nullptr;
  }
  HEADRACE_RETURN_IF_ERROR(read_gemma_gguf_layers(gguf, spec, 6).status());
  for (LayerSpec& layer : spec.layers) {
    if (gqa(layer).kv_layer >= 0) gqa(layer).values_from_keys = false;  // it has none of its own
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, gguf.integer_or("expert_count", 0, 1 << 14, 0));
  if (count == 0) return spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t top_k, gguf.integer("expert_used_count", 1, count));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, gguf.integer("expert_feed_forward_length", 1, 1 << 22));
  set_experts(spec, count, top_k, inner);
  return spec;
}

}  // namespace

const Family kGemma4TextFamily = {"gemma4",          "Gemma4ForCausalLM",     "gemma4_text",
                                  "gemma4",          gemma4_text_from_config, gemma4_from_gguf,
                                  gemma_layer_names, gemma_layer_gguf_names};
const Family kGemma4Family = {"gemma4", "Gemma4ForConditionalGeneration", "gemma4", "", gemma4_from_config,
                              nullptr,  wrapped_gemma_layer_names,        nullptr};

}  // namespace headrace
