// Qwen2.5-VL, Qwen3-VL and Qwen3.5 with images: patches of images of any size, rotated by row and column, four of which become
// a row of the decoder, which rotates by three positions. Reference: transformers models/qwen2_5_vl, qwen3_vl, qwen3_5.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/format_full.h"
#include "model/families/config_keys.h"
#include "model/families/encoder.h"
#include "model/families/tensor_names.h"
#include "model/families/vision.h"

namespace headrace {

namespace {

constexpr int64_t kMostPatches = 1 << 16;  // of an image; the processors' default is fewer
constexpr float kVisionEps = 1e-6f;        // of every norm of the encoders, whatever the config says
constexpr int32_t kAxes = 3;               // time, row, column

constexpr std::string_view kWrapperKeys[] = {
    "text_config", "vision_config", "image_token_id", "vision_start_token_id", "vision_end_token_id",
    // Of videos, which are not read, and of parts of images that nothing reads.
    "video_token_id", "vision_token_id",
    // That a program is to leave images out.
    "language_model_only"};

// ---- The text model ----

// Sections of the rotation: how many pairs each axis turns.
struct Sections {
  std::vector<int64_t> sizes;
  bool interleaved = false;
};

// Takes what the text model's own reader does not know out of its rotation.
Result<Sections> take_sections(nlohmann::json& text, const std::string& place, bool interleaved) {
  Sections out;
  out.interleaved = interleaved;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!text.contains(key) || !text[key].is_object()) continue;
    nlohmann::json& rope = text[key];
    const ConfigReader reader(rope, place + "/" + key);
    HEADRACE_ASSIGN_OR_RETURN(out.sizes, reader.integers("mrope_section"));
    HEADRACE_RETURN_IF_ERROR(reader.only("mrope_interleaved", interleaved));
    rope.erase("mrope_section");
    rope.erase("mrope_interleaved");
    for (const char* type : {"type", "rope_type"}) {
      if (rope.contains(type) && rope[type] == "mrope") rope[type] = "default";
    }
    if (out.sizes.size() == kAxes) return out;
    return malformed(place + "/" + key + "/mrope_section", "{} sections for {} axes", out.sizes.size(), kAxes);
  }
  return malformed(place + "/rope_parameters/mrope_section", "missing");
}

// Which axis turns each pair: sections one after the other, or in turns as far as those of rows and columns reach.
Status set_axes(const Sections& sections, const std::string& place, ModelSpec& spec) {
  spec.position_axes = kAxes;
  for (LayerSpec& layer : spec.layers) {
    auto* attention = std::get_if<GqaAttention>(&layer.attention);
    if (attention == nullptr) continue;
    const auto pairs = static_cast<int64_t>(attention->rope.inv_freq.size());
    const std::vector<int64_t>& sizes = sections.sizes;
    if (std::ranges::any_of(sizes, [&](int64_t size) { return size < 0 || size > pairs; }) ||
        sizes[0] + sizes[1] + sizes[2] != pairs) {
      return malformed(place + "/rope_parameters/mrope_section", "[{}] are not the {} pairs of a head",
                       fmt::join(sizes, ", "), pairs);
    }
    attention->rope.axes.clear();
    for (int64_t pair = 0; pair < pairs; ++pair) {
      int32_t axis = 0;
      if (sections.interleaved) {
        const int64_t turn = pair % kAxes;
        if (turn > 0 && pair < kAxes * sizes[static_cast<size_t>(turn)]) axis = static_cast<int32_t>(turn);
      } else {
        axis = pair < sizes[0] ? 0 : pair < sizes[0] + sizes[1] ? 1 : 2;
      }
      attention->rope.axes.push_back(axis);
    }
  }
  return {};
}

struct TextModel {
  const Family& family;
  const char* type;  // of the whole model
  const char* architecture;
  std::span<const KeyDefault> defaults;  // of the class, where they are not those of `family`
  double theta;                          // likewise
  bool interleaved = true;               // sections of the rotation, whatever the config says
};

Result<ModelSpec> read_text(nlohmann::json& text, const TensorFile& weights, const TextModel& model,
                            const std::string& place) {
  HEADRACE_ASSIGN_OR_RETURN(const Sections sections, take_sections(text, place, model.interleaved));
  const bool newer = text.contains("rope_parameters") && text["rope_parameters"].is_object();
  nlohmann::json& theta_holder = newer ? text["rope_parameters"] : text;
  if (!theta_holder.contains("rope_theta")) theta_holder["rope_theta"] = model.theta;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, model.family.from_config(ConfigReader(text, place), weights));
  spec.architecture = model.architecture;
  HEADRACE_RETURN_IF_ERROR(set_axes(sections, place, spec));
  return spec;
}

// The two parts say whose they are, or nothing.
Status check_part(const ConfigReader& config, const char* part, const std::string& type) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object(part));
  HEADRACE_ASSIGN_OR_RETURN(const std::string given, nested.text_or("model_type", type));
  if (given == type || given == type + "_text" || given == type + "_vision") return {};
  return unsupported(nested.place_of("model_type"), "'{}' in a model of type '{}'", given, type);
}

Result<ModelSpec> read_wrapped(const ConfigReader& config, const TensorFile& weights, const TextModel& model) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kWrapperKeys));
  HEADRACE_RETURN_IF_ERROR(check_part(config, "text_config", model.type));
  HEADRACE_RETURN_IF_ERROR(check_part(config, "vision_config", model.type));
  HEADRACE_ASSIGN_OR_RETURN(auto text, text_config(config, model.defaults));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_text(text, weights, model, config.place_of("text_config")));
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_word_embeddings", spec.head.tied));
  return spec;
}

constexpr KeyDefault kQwen25Defaults[] = {{"rms_norm_eps", 1e-5}, {"max_window_layers", 80}};
constexpr KeyDefault kQwen3Defaults[] = {{"max_position_embeddings", 128000}};

Result<ModelSpec> qwen2_5_vl_from_config(const ConfigReader& config, const TensorFile& weights) {
  const TextModel model{kQwen2Family, "qwen2_5_vl", "qwen2_5_vl", kQwen25Defaults, 1e6, false};
  if (config.has("text_config")) return read_wrapped(config, weights, model);
  // The makers' files have no text_config: its keys stand beside the others.
  HEADRACE_ASSIGN_OR_RETURN(auto text, copy_config(config.json(), model.defaults));
  for (const std::string_view key : kWrapperKeys) {
    if (const auto it = text.find(std::string(key)); it != text.end()) {
      release_json(*it);
      text.erase(it);
    }
  }
  return read_text(text, weights, model, "");
}

Result<std::vector<int64_t>> read_deep_layers(const ConfigReader& config) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  if (!vision.has("deepstack_visual_indexes")) return std::vector<int64_t>{8, 16, 24};
  return vision.integers("deepstack_visual_indexes");
}

Result<ModelSpec> qwen3_vl_from_config(const ConfigReader& config, const TensorFile& weights) {
  const TextModel model{kQwen3Family, "qwen3_vl", "qwen3_vl", kQwen3Defaults, 500000.0};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_wrapped(config, weights, model));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> deep, read_deep_layers(config));
  if (deep.size() >= spec.layers.size()) {
    return malformed("/vision_config/deepstack_visual_indexes", "{} entries for the {} layers of the decoder",
                     deep.size(), spec.layers.size());
  }
  spec.deep_embeddings = static_cast<int32_t>(deep.size());
  return spec;
}

Result<ModelSpec> qwen3_5_vl_from_config(const ConfigReader& config, const TensorFile& weights) {
  return read_wrapped(config, weights, {kQwen35Family, "qwen3_5", "qwen3_5_vl", {}, 10000.0});
}

// ---- The encoder ----

constexpr std::string_view kVisionKeys[] = {"depth", "num_heads", "in_channels", "patch_size", "spatial_merge_size",
                                            "temporal_patch_size", "out_hidden_size",
                                            // Of videos.
                                            "tokens_per_second"};

struct VisionDefaults {
  int64_t depth, hidden_size, intermediate_size, patch_size;
  const char* activation;
};

// Sizes, the rotation and the joining of patches, which all have in common.
Result<VisionSpec> read_encoder(const ConfigReader& config, const ConfigReader& vision, const ModelSpec& decoder,
                                const VisionDefaults& defaults, std::span<const std::string_view> own_keys,
                                int64_t image_token_id) {
  std::vector<std::string_view> keys(std::begin(kVisionKeys), std::end(kVisionKeys));
  keys.insert(keys.end(), own_keys.begin(), own_keys.end());
  HEADRACE_RETURN_IF_ERROR(check_config_keys(vision, keys));
  VisionSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t depth, vision.integer_or("depth", 1, 4096, defaults.depth));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden, vision.integer_or("hidden_size", 1, 1 << 18, defaults.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner,
                            vision.integer_or("intermediate_size", 1, 1 << 22, defaults.intermediate_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, vision.integer_or("num_heads", 1, 1 << 14, 16));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t channels, vision.integer_or("in_channels", 1, 16, 3));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t patch, vision.integer_or("patch_size", 1, 1 << 10, defaults.patch_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t merge, vision.integer_or("spatial_merge_size", 1, 64, 2));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t frames, vision.integer_or("temporal_patch_size", 1, 64, 2));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t out_size, vision.integer_or("out_hidden_size", 1, 1 << 18, 3584));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(vision, "hidden_act", defaults.activation));
  if (hidden % heads != 0 || hidden / heads % 4 != 0) {
    return malformed(vision.place_of("num_heads"),
                     "hidden_size {} does not divide into {} heads of whole pairs by row "
                     "and column",
                     hidden, heads);
  }
  if (out_size != decoder.hidden_size) {
    return malformed(vision.place_of("out_hidden_size"), "{}, but the decoder's rows have {}", out_size,
                     decoder.hidden_size);
  }
  spec.planes = false;
  spec.grid_positions = true;
  spec.channels = static_cast<int32_t>(channels);
  spec.patch_size = static_cast<int32_t>(patch);
  spec.frames = static_cast<int32_t>(frames);
  spec.out_size = decoder.hidden_size;
  HEADRACE_ASSIGN_OR_RETURN(spec.image_token_id, read_token_id(config, {"image_token_id"}, decoder, image_token_id));
  spec.projector.merge = static_cast<int32_t>(merge);
  spec.projector.inner_size = static_cast<int32_t>(hidden * merge * merge);
  spec.projector.bias = true;
  spec.projector.norm_place = ProjectorNorm::kOfPatches;
  spec.projector.norm_eps = kVisionEps;

  const auto head_dim = static_cast<int32_t>(hidden / heads);
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader rope_config, vision.object("rope_parameters"));
  HEADRACE_RETURN_IF_ERROR(rope_config.check_known(std::to_array<std::string_view>({"rope_type", "rope_theta"})));
  HEADRACE_RETURN_IF_ERROR(rope_config.only("rope_type", "axial"));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, rope_config.positive_or("rope_theta", 10000.0));
  auto rope = make_rope(theta, head_dim / 2, {});
  if (!rope.ok()) return rope.status().within(vision.place_of("rope_parameters"));
  const size_t quarter = rope->inv_freq.size();
  rope->rotary_dim = head_dim;
  rope->inv_freq.insert(rope->inv_freq.end(), rope->inv_freq.begin(),
                        rope->inv_freq.begin() + static_cast<int64_t>(quarter));
  rope->axes.assign(quarter, 0);
  rope->axes.resize(2 * quarter, 1);

  GqaAttention attention;
  attention.num_heads = attention.num_kv_heads = static_cast<int32_t>(heads);
  attention.head_dim = head_dim;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  attention.qkv_bias = attention.output_bias = true;
  attention.rope = *rope;
  LayerSpec layer;
  layer.attention = attention;
  DenseFeedForward feed_forward;
  feed_forward.intermediate_size = static_cast<int32_t>(inner);
  feed_forward.activation = activation;
  feed_forward.bias = true;
  feed_forward.gated = false;
  layer.feed_forward = feed_forward;
  ModelSpec& encoder = spec.encoder;
  encoder.hidden_size = static_cast<int32_t>(hidden);
  encoder.norm_eps = kVisionEps;
  encoder.layers.assign(static_cast<size_t>(depth), layer);
  set_encoder_layers(encoder, /*norm_bias=*/true);
  encoder.final_norm = false;
  encoder.position_axes = 2;
  encoder.max_position_embeddings = static_cast<int32_t>(kMostPatches);
  return spec;
}

// RMS norms, gated feed-forwards, and windows but in a few layers.
Result<VisionSpec> qwen2_5_vl_vision(const ConfigReader& config, const ModelSpec& decoder) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  constexpr std::string_view kKeys[] = {"window_size", "fullatt_block_indexes",
                                        // The makers' names for what other keys say, read by nothing.
                                        "in_chans", "spatial_patch_size"};
  HEADRACE_ASSIGN_OR_RETURN(VisionSpec spec,
                            read_encoder(config, vision, decoder, {32, 3584, 3420, 14, "silu"}, kKeys, 151655));
  spec.encoder.architecture = "qwen2_5_vl_vision";
  spec.encoder.norm = NormKind::kRms;
  spec.encoder.norm_bias = false;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t pixels, vision.integer_or("window_size", 1, 1 << 20, 112));
  const int64_t squares = pixels / spec.projector.merge / spec.patch_size;
  if (squares < 1)
    return malformed(vision.place_of("window_size"), "{} pixels are less than a square of patches", pixels);
  spec.window = static_cast<int32_t>(squares) * spec.projector.merge;
  std::vector<int64_t> full = {7, 15, 23, 31};
  if (vision.has("fullatt_block_indexes")) {
    HEADRACE_ASSIGN_OR_RETURN(full, vision.integers("fullatt_block_indexes"));
  }
  for (size_t i = 0; i < spec.encoder.layers.size(); ++i) {
    LayerSpec& layer = spec.encoder.layers[i];
    dense(layer).gated = true;
    const bool windowed = std::ranges::find(full, static_cast<int64_t>(i)) == full.end();
    if (windowed) gqa(layer).spans = SpanKind::kAlone;
  }
  return spec;
}

// Positions of a learned grid besides; layer norms.
Result<VisionSpec> read_grid_encoder(const ConfigReader& config, const ModelSpec& decoder, const char* architecture,
                                     std::span<const std::string_view> own_keys, int64_t image_token_id) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  HEADRACE_ASSIGN_OR_RETURN(
      VisionSpec spec,
      read_encoder(config, vision, decoder, {27, 1152, 4304, 16, "gelu_pytorch_tanh"}, own_keys, image_token_id));
  spec.encoder.architecture = architecture;
  spec.patch_bias = true;
  spec.positions = PatchPositions::kInterpolated;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t positions, vision.integer_or("num_position_embeddings", 1, 1 << 24, 2304));
  spec.num_positions = static_cast<int32_t>(positions);
  spec.projector.norm = NormKind::kLayer;
  spec.projector.norm_bias = true;
  return spec;
}

Result<VisionSpec> qwen3_vl_vision(const ConfigReader& config, const ModelSpec& decoder) {
  constexpr std::string_view kKeys[] = {"num_position_embeddings", "deepstack_visual_indexes"};
  HEADRACE_ASSIGN_OR_RETURN(VisionSpec spec, read_grid_encoder(config, decoder, "qwen3_vl_vision", kKeys, 151655));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> deep, read_deep_layers(config));
  for (const int64_t layer : deep) {
    if (layer < 0 || layer >= static_cast<int64_t>(spec.encoder.layers.size())) {
      return malformed("/vision_config/deepstack_visual_indexes", "the encoder has no layer {}", layer);
    }
    spec.deep_layers.push_back(static_cast<int32_t>(layer));
  }
  spec.deep_projector = spec.projector;
  spec.deep_projector.norm_place = ProjectorNorm::kOfJoined;
  return spec;
}

Result<VisionSpec> qwen3_5_vl_vision(const ConfigReader& config, const ModelSpec& decoder) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  if (const nlohmann::json* deep = vision.find("deepstack_visual_indexes"); deep != nullptr && !deep->empty()) {
    return unsupported(vision.place_of("deepstack_visual_indexes"), "of Qwen3.5");
  }
  constexpr std::string_view kKeys[] = {"num_position_embeddings", "deepstack_visual_indexes"};
  return read_grid_encoder(config, decoder, "qwen3_5_vision", kKeys, 248056);
}

// ---- Names ----

constexpr std::string_view kVisual[] = {"visual.", "model.visual."};

WeightNaming text_names(const Family& family, const TensorFile& weights) {
  const std::span<const NamePair> layer = family.hf_names(weights).layer;
  if (has_prefix(weights, "model.language_model.")) {
    return {"model.language_model.layers.", layer, kLanguageModelTopNames, kVisual, kTiedHead};
  }
  return {"model.layers.", layer, kHfTopNames, kVisual, kTiedHead};
}
WeightNaming qwen2_5_vl_names(const TensorFile& weights) { return text_names(kQwen2Family, weights); }
WeightNaming qwen3_vl_names(const TensorFile& weights) { return text_names(kQwen3Family, weights); }
WeightNaming qwen3_5_vl_names(const TensorFile& weights) { return text_names(kQwen35Family, weights); }

constexpr NamePair kVisionLayer[] = {
    {"q_proj", "attn.qkv"},         {"k_proj", "attn.qkv"},         {"v_proj", "attn.qkv"},
    {"o_proj", "attn.proj"},        {"gate_proj", "mlp.gate_proj"}, {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"}, {"up_proj", "mlp.linear_fc1"},  {"down_proj", "mlp.linear_fc2"},
    {"attention_norm", "norm1"},    {"feed_forward_norm", "norm2"},
};
constexpr NamePair kOuterVision[] = {
    {"patch", "visual.patch_embed.proj"},
    {"positions", "visual.pos_embed"},
    {"projector.norm", "visual.merger.ln_q"},
    {"projector.norm", "visual.merger.norm"},
    {"projector.linear_1", "visual.merger.mlp.0"},
    {"projector.linear_1", "visual.merger.linear_fc1"},
    {"projector.linear_2", "visual.merger.mlp.2"},
    {"projector.linear_2", "visual.merger.linear_fc2"},
    {"deep.*.norm", "visual.deepstack_merger_list.*.norm"},
    {"deep.*.linear_1", "visual.deepstack_merger_list.*.linear_fc1"},
    {"deep.*.linear_2", "visual.deepstack_merger_list.*.linear_fc2"},
};
constexpr NamePair kInnerVision[] = {
    {"patch", "model.visual.patch_embed.proj"},
    {"positions", "model.visual.pos_embed"},
    {"projector.norm", "model.visual.merger.ln_q"},
    {"projector.norm", "model.visual.merger.norm"},
    {"projector.linear_1", "model.visual.merger.mlp.0"},
    {"projector.linear_1", "model.visual.merger.linear_fc1"},
    {"projector.linear_2", "model.visual.merger.mlp.2"},
    {"projector.linear_2", "model.visual.merger.linear_fc2"},
    {"deep.*.norm", "model.visual.deepstack_merger_list.*.norm"},
    {"deep.*.linear_1", "model.visual.deepstack_merger_list.*.linear_fc1"},
    {"deep.*.linear_2", "model.visual.deepstack_merger_list.*.linear_fc2"},
};

WeightNaming vision_names(const TensorFile& weights) {
  if (has_prefix(weights, "model.visual.")) {
    return {"model.visual.blocks.", kVisionLayer, kInnerVision, {}, {}, /*more_layers=*/false, kVisual};
  }
  return {"visual.blocks.", kVisionLayer, kOuterVision, {}, {}, /*more_layers=*/false, kVisual};
}

}  // namespace

const Family kQwen25VlFamily = {"qwen2_5_vl",           "Qwen2_5_VLForConditionalGeneration",
                                "qwen2_5_vl",           "",
                                qwen2_5_vl_from_config, nullptr,
                                qwen2_5_vl_names,       nullptr,
                                qwen2_5_vl_vision,      vision_names};
const Family kQwen3VlFamily = {"qwen3_vl",           "Qwen3VLForConditionalGeneration",
                               "qwen3_vl",           "",
                               qwen3_vl_from_config, nullptr,
                               qwen3_vl_names,       nullptr,
                               qwen3_vl_vision,      vision_names};
const Family kQwen35VlFamily = {"qwen3_5_vl",
                                "Qwen3_5ForConditionalGeneration",
                                "qwen3_5",
                                "",
                                qwen3_5_vl_from_config,
                                nullptr,
                                qwen3_5_vl_names,
                                nullptr,
                                qwen3_5_vl_vision,
                                vision_names};

}  // namespace headrace
