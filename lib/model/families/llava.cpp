// LLaVA 1.5: CLIP's patches, without the last layer, through two matrices into a Llama-like decoder. Reference: transformers
// models/llava, models/clip.
#include <algorithm>

#include "base/format_full.h"
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/tensor_names.h"
#include "model/families/vision.h"

namespace headrace {

namespace {

constexpr std::string_view kWrapperKeys[] = {"text_config", "vision_config", "image_token_index", "image_token_id",
                                             "projector_hidden_act", "multimodal_projector_bias",
                                             "vision_feature_layer", "vision_feature_select_strategy",
                                             // Follows from the encoder; and of training.
                                             "image_seq_length", "ignore_index"};
constexpr std::string_view kTextFamilies[] = {"llama", "mistral", "qwen2"};

Result<ModelSpec> llava_from_config(const ConfigReader& config, const TensorFile& weights) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kWrapperKeys));
  HEADRACE_ASSIGN_OR_RETURN(auto text, text_config(config));
  const std::string place = config.place_of("text_config");
  HEADRACE_ASSIGN_OR_RETURN(const std::string type, ConfigReader(text, place).text_or("model_type", "llama"));
  if (std::ranges::find(kTextFamilies, type) == std::end(kTextFamilies)) {
    return unsupported(place + "/model_type", "'{}' (known behind this encoder: {})", type,
                       fmt::join(kTextFamilies, ", "));
  }
  if (type == "llama") {  // the makers' files leave the sizes of Llama's first model out
    constexpr KeyDefault kSizes[] = {{"vocab_size", 32000},
                                     {"hidden_size", 4096},
                                     {"intermediate_size", 11008},
                                     {"num_hidden_layers", 32},
                                     {"num_attention_heads", 32}};
    HEADRACE_ASSIGN_OR_RETURN(text, text_config(config, kSizes));
  }
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, find_family(type)->from_config(ConfigReader(text, place), weights));
  spec.architecture = "llava";
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_word_embeddings", spec.head.tied));
  return spec;
}

// How many of the encoder's layers the rows pass that the projector sees: a count, or from the end.
Result<size_t> read_feature_layer(const ConfigReader& config, size_t num_layers) {
  const auto count = static_cast<int64_t>(num_layers);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layer, config.integer_or("vision_feature_layer", -count - 1, count, -2));
  const int64_t used = layer < 0 ? count + 1 + layer : layer;
  if (used < 1) return unsupported(config.place_of("vision_feature_layer"), "{} is before the first layer", layer);
  return static_cast<size_t>(used);
}

Result<VisionSpec> llava_vision(const ConfigReader& config, const ModelSpec& decoder) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  HEADRACE_RETURN_IF_ERROR(vision.only("model_type", "clip_vision_model"));
  // Of CLIP's text side, which the makers' files keep here.
  constexpr std::string_view kClipKeys[] = {"vocab_size"};
  HEADRACE_ASSIGN_OR_RETURN(VisionSpec spec, read_plane_encoder(vision, {224, 32, "quick_gelu", 1e-5}, kClipKeys));
  spec.encoder.architecture = "clip_vision";
  spec.class_row = true;
  ++spec.num_positions;
  spec.encoder.max_position_embeddings = spec.num_positions;
  spec.encoder.embedding_norm = true;
  spec.encoder.final_norm = false;
  HEADRACE_RETURN_IF_ERROR(config.only("vision_feature_select_strategy", "default"));
  HEADRACE_ASSIGN_OR_RETURN(const size_t layers, read_feature_layer(config, spec.encoder.layers.size()));
  spec.encoder.layers.resize(layers);
  spec.projector.inner_size = spec.out_size = decoder.hidden_size;
  HEADRACE_ASSIGN_OR_RETURN(spec.projector.activation, read_activation(config, "projector_hidden_act", "gelu"));
  HEADRACE_ASSIGN_OR_RETURN(spec.projector.bias, config.boolean_or("multimodal_projector_bias", true));
  HEADRACE_ASSIGN_OR_RETURN(spec.image_token_id,
                            read_token_id(config, {"image_token_index", "image_token_id"}, decoder, 32000));
  return spec;
}

// The makers' files, those of newer transformers, and what is between them differ in prefixes.
WeightNaming text_names(const TensorFile& weights) {
  const std::span<const NamePair> layer = llama_hf_names(weights).layer;
  if (has_prefix(weights, "model.language_model.")) {
    return {"model.language_model.layers.", layer, kLanguageModelTopNames, kPlaneTowers, kHfSurplus};
  }
  return {"language_model.model.layers.", layer, kOldLanguageModelTopNames, kPlaneTowers, kHfSurplus};
}

constexpr NamePair kVisionTop[] = {
    {"patch", "vision_tower.vision_model.embeddings.patch_embedding"},
    {"patch", "model.vision_tower.vision_model.embeddings.patch_embedding"},
    {"patch", "model.vision_tower.embeddings.patch_embedding"},
    {"patch", "vision_tower.embeddings.patch_embedding"},
    {"class_row", "vision_tower.vision_model.embeddings.class_embedding"},
    {"class_row", "model.vision_tower.vision_model.embeddings.class_embedding"},
    {"class_row", "model.vision_tower.embeddings.class_embedding"},
    {"class_row", "vision_tower.embeddings.class_embedding"},
    {"positions", "vision_tower.vision_model.embeddings.position_embedding"},
    {"positions", "model.vision_tower.vision_model.embeddings.position_embedding"},
    {"positions", "model.vision_tower.embeddings.position_embedding"},
    {"positions", "vision_tower.embeddings.position_embedding"},
    {"embedding_norm", "vision_tower.vision_model.pre_layrnorm"},
    {"embedding_norm", "model.vision_tower.vision_model.pre_layrnorm"},
    {"embedding_norm", "model.vision_tower.pre_layrnorm"},
    {"embedding_norm", "vision_tower.pre_layrnorm"},
    {"projector.linear_1", "multi_modal_projector.linear_1"},
    {"projector.linear_1", "model.multi_modal_projector.linear_1"},
    {"projector.linear_2", "multi_modal_projector.linear_2"},
    {"projector.linear_2", "model.multi_modal_projector.linear_2"},
};

// Behind the layer that the projector sees, and a list of numbers.
constexpr std::string_view kUnused[] = {"post_layernorm.weight", "post_layernorm.bias", "position_ids"};

WeightNaming vision_names(const TensorFile& weights) {
  return {plane_layer_prefix(weights), kPlaneEncoderLayer, kVisionTop, {}, kUnused, /*more_layers=*/true, kPlaneTowers};
}

}  // namespace

const Family kLlavaFamily = {"llava",           "LlavaForConditionalGeneration",
                             "llava",           "",
                             llava_from_config, nullptr,
                             text_names,        nullptr,
                             llava_vision,      vision_names};

}  // namespace headrace
