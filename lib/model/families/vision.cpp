#include "model/families/vision.h"

#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/encoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kPlaneKeys[] = {"image_size", "patch_size", "num_channels", "layer_norm_eps",
                                           // Of training, and of heads that the decoder does without.
                                           "initializer_factor", "projection_dim", "vision_use_head"};

}  // namespace

Result<VisionSpec> read_plane_encoder(const ConfigReader& config, const PlaneEncoderDefaults& defaults,
                                      std::span<const std::string_view> own_keys) {
  std::vector<std::string_view> keys(std::begin(kPlaneKeys), std::end(kPlaneKeys));
  keys.insert(keys.end(), own_keys.begin(), own_keys.end());
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, keys));
  VisionSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t image_size, config.integer_or("image_size", 1, 1 << 15, defaults.image_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t patch_size, config.integer_or("patch_size", 1, 1 << 10, defaults.patch_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t channels, config.integer_or("num_channels", 1, 16, 3));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden, config.integer_or("hidden_size", 1, 1 << 18, 768));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, config.integer_or("intermediate_size", 1, 1 << 22, 3072));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layers, config.integer_or("num_hidden_layers", 1, 4096, 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer_or("num_attention_heads", 1, 1 << 14, 12));
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.positive_or("layer_norm_eps", defaults.norm_eps));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", defaults.activation));
  if (hidden % heads != 0) {
    return malformed(config.place_of("num_attention_heads"), "hidden_size {} is no multiple of {} heads", hidden,
                     heads);
  }
  spec.image_size = static_cast<int32_t>(image_size);
  spec.patch_size = static_cast<int32_t>(patch_size);
  spec.channels = static_cast<int32_t>(channels);
  spec.positions = PatchPositions::kTable;
  const int64_t side = image_size / patch_size;
  spec.num_positions = static_cast<int32_t>(side * side);

  ModelSpec& encoder = spec.encoder;
  encoder.hidden_size = static_cast<int32_t>(hidden);
  encoder.norm_eps = static_cast<float>(eps);
  LayerSpec layer;
  GqaAttention attention;
  attention.num_heads = attention.num_kv_heads = static_cast<int32_t>(heads);
  attention.head_dim = static_cast<int32_t>(hidden / heads);
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden / heads)));
  attention.qkv_bias = attention.output_bias = true;
  layer.attention = attention;
  DenseFeedForward feed_forward;
  feed_forward.intermediate_size = static_cast<int32_t>(inner);
  feed_forward.activation = activation;
  feed_forward.bias = true;
  feed_forward.gated = false;
  layer.feed_forward = feed_forward;
  encoder.layers.assign(static_cast<size_t>(layers), layer);
  set_encoder_layers(encoder, /*norm_bias=*/true);
  encoder.max_position_embeddings = spec.num_positions;
  return spec;
}

std::string_view plane_layer_prefix(const TensorFile& weights) {
  constexpr std::string_view kPrefixes[] = {"vision_tower.vision_model.encoder.layers.",
                                            "model.vision_tower.vision_model.encoder.layers.",
                                            "model.vision_tower.encoder.layers.", "vision_tower.encoder.layers."};
  for (const std::string_view prefix : kPrefixes) {
    if (has_prefix(weights, prefix)) return prefix;
  }
  return kPrefixes[0];
}

Result<HeldJson<nlohmann::json>> copy_config(const nlohmann::json& object, std::span<const KeyDefault> defaults) {
  // Written and read again: a copy of the tree that found no memory half way could not be destroyed.
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  HEADRACE_ASSIGN_OR_RETURN(auto out, parse_json(text, "config.json"));
  for (const KeyDefault& each : defaults) {
    if (out.contains(each.key)) continue;
    const auto integer = static_cast<int64_t>(each.value);
    if (static_cast<double>(integer) == each.value) {
      out[each.key] = integer;
    } else {
      out[each.key] = each.value;
    }
  }
  return out;
}

Result<HeldJson<nlohmann::json>> text_config(const ConfigReader& config, std::span<const KeyDefault> defaults) {
  const nlohmann::json* given = config.find("text_config");
  if (given == nullptr) return malformed(config.place_of("text_config"), "missing");
  if (!given->is_object()) return malformed(config.place_of("text_config"), "not an object");
  return copy_config(*given, defaults);
}

Result<int32_t> read_token_id(const ConfigReader& config, std::initializer_list<const char*> keys,
                              const ModelSpec& decoder, int64_t fallback) {
  for (const char* key : keys) {
    if (!config.has(key)) continue;
    HEADRACE_ASSIGN_OR_RETURN(const int64_t id, config.integer(key, 0, decoder.vocab_size - 1));
    return static_cast<int32_t>(id);
  }
  if (fallback < 0 || fallback >= decoder.vocab_size) return malformed(config.place_of(*keys.begin()), "missing");
  return static_cast<int32_t>(fallback);
}

}  // namespace headrace
