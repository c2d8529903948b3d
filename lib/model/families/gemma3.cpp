// Gemma 3: norms before and after each block, windowed layers with rotary positions of their own,
// embeddings scaled by sqrt(hidden_size). Reference: transformers models/gemma3. Norm weights are stored
// minus one in safetensors, whole in GGUF.
#include <array>
#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/gemma_layers.h"
#include "model/families/tensor_names.h"
#include "model/families/vision.h"

namespace headrace {

namespace {

constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;
constexpr int64_t kDefaultPattern = 6;  // every 6th layer sees everything

void set_common(ModelSpec& spec) {
  spec.architecture = "gemma3";
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).qk_norm = true;
    layer.post_attention_norm = layer.post_feed_forward_norm = true;
  }
}

// Every `pattern`-th layer is global, the others windowed.
std::vector<bool> windowed_by_pattern(size_t num_layers, int64_t pattern) {
  std::vector<bool> windowed(num_layers);
  for (size_t i = 0; i < num_layers; ++i) windowed[i] = (static_cast<int64_t>(i) + 1) % pattern != 0;
  return windowed;
}

void set_layers(ModelSpec& spec, const std::vector<bool>& windowed, const RopeSpec& global, const RopeSpec& local,
                int32_t window) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).rope = windowed[i] ? local : global;
    gqa(spec.layers[i]).window = windowed[i] ? window : 0;
  }
}

struct RopePair {
  RopeConfig global, local;
};

// Newer configs keep one set per layer type; older ones scale the global one alone.
Result<RopePair> read_rope_pair(const ConfigReader& config, int64_t max_positions) {
  HEADRACE_ASSIGN_OR_RETURN(const double local_theta, config.positive_or("rope_local_base_freq", kLocalTheta));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  RopePair out;
  if (nested.has("full_attention") || nested.has("sliding_attention")) {
    HEADRACE_RETURN_IF_ERROR(
        nested.check_known(std::to_array<std::string_view>({"full_attention", "sliding_attention"})));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader global, nested.object("full_attention"));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader local, nested.object("sliding_attention"));
    HEADRACE_ASSIGN_OR_RETURN(out.global, read_rope_parameters(global, kGlobalTheta, max_positions));
    HEADRACE_ASSIGN_OR_RETURN(out.local, read_rope_parameters(local, local_theta, max_positions));
    return out;
  }
  if (config.has("rope_parameters")) {
    return unsupported(config.place_of("rope_parameters"), "expected full_attention and sliding_attention");
  }
  HEADRACE_ASSIGN_OR_RETURN(out.global, read_rope(config, kGlobalTheta, max_positions));
  out.local.theta = local_theta;
  return out;
}

constexpr std::string_view kTextKeys[] = {"hidden_activation",       "query_pre_attn_scalar", "attn_logit_softcapping",
                                          "final_logit_softcapping", "sliding_window",        "sliding_window_pattern",
                                          "_sliding_window_pattern", "layer_types",           "rope_local_base_freq",
                                          "attention_bias"};
constexpr std::string_view kWrapperKeys[] = {"text_config", "vision_config", "mm_tokens_per_image", "image_token_index",
                                             // Tokens around an image, which the prompt has.
                                             "boi_token_index", "eoi_token_index"};

Result<ModelSpec> gemma3_text_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kTextKeys));
  DenseDefaults defaults;
  defaults.vocab_size = 262208;
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.num_layers = 26;
  defaults.num_heads = 8;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 256;
  defaults.max_position_embeddings = 131072;
  defaults.tied = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  set_common(spec);
  spec.norm_weight_offset = 1.0f;

  HEADRACE_ASSIGN_OR_RETURN(const RopePair ropes, read_rope_pair(config, spec.max_position_embeddings));
  const int32_t head_dim = gqa(spec.layers[0]).head_dim;
  auto global = make_rope(ropes.global.theta, head_dim, ropes.global.scaling);
  if (!global.ok()) return global.status().within(config.place_of("rope_parameters"));
  auto local = make_rope(ropes.local.theta, head_dim, ropes.local.scaling);
  if (!local.ok()) return local.status().within(config.place_of("rope_parameters"));

  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, 4096));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  if (windowed.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden_key,
                              config.integer_or("_sliding_window_pattern", 1, INT32_MAX, kDefaultPattern));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t pattern,
                              config.integer_or("sliding_window_pattern", 1, INT32_MAX, hidden_key));
    windowed = windowed_by_pattern(spec.layers.size(), pattern);
  }
  set_layers(spec, windowed, *global, *local, static_cast<int32_t>(window));

  HEADRACE_ASSIGN_OR_RETURN(const double scalar, config.positive_or("query_pre_attn_scalar", 256));
  HEADRACE_ASSIGN_OR_RETURN(const double softcap, config.number_or("attn_logit_softcapping", 0));
  HEADRACE_ASSIGN_OR_RETURN(const double final_softcap, config.number_or("final_logit_softcapping", 0));
  if (softcap < 0) return malformed(config.place_of("attn_logit_softcapping"), "{} is negative", softcap);
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation,
                            read_activation(config, "hidden_activation", "gelu_pytorch_tanh"));
  spec.head.logit_softcap = static_cast<float>(final_softcap);
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).scale = static_cast<float>(std::pow(scalar, -0.5));
    gqa(layer).logit_softcap = static_cast<float>(softcap);
    gqa(layer).qkv_bias = gqa(layer).output_bias = bias;
    dense(layer).activation = activation;
  }
  return spec;
}

// Rows of an image see on to its end, as far back as the layer's window reaches.
Result<ModelSpec> gemma3_from_config(const ConfigReader& config, const TensorFile& weights) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader text, config.object("text_config"));
  HEADRACE_RETURN_IF_ERROR(text.only("model_type", "gemma3_text"));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_wrapped_text(config, kWrapperKeys, weights, gemma3_text_from_config));
  for (LayerSpec& layer : spec.layers) gqa(layer).spans = SpanKind::kSeen;
  return spec;
}

// SigLIP's patches, averaged over squares, through a norm and one matrix.
Result<VisionSpec> gemma3_vision(const ConfigReader& config, const ModelSpec& decoder) {
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader vision, config.object("vision_config"));
  HEADRACE_RETURN_IF_ERROR(vision.only("model_type", "siglip_vision_model"));
  HEADRACE_ASSIGN_OR_RETURN(VisionSpec spec, read_plane_encoder(vision, {224, 16, "gelu_pytorch_tanh", 1e-6}, {}));
  spec.encoder.architecture = "siglip_vision";
  spec.patch_bias = true;
  spec.out_size = decoder.hidden_size;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t tokens, config.integer_or("mm_tokens_per_image", 1, 1 << 20, 256));
  const auto side = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(tokens))));
  const int32_t patches = spec.image_size / spec.patch_size;
  if (side * side != tokens || patches % side != 0) {
    return malformed(config.place_of("mm_tokens_per_image"), "{} rows for {} x {} patches", tokens, patches, patches);
  }
  spec.projector.pool = patches / side;
  spec.projector.norm_place = ProjectorNorm::kOfJoined;
  spec.projector.norm_eps = spec.encoder.norm_eps;
  spec.projector.norm_weight_offset = 1.0f;
  HEADRACE_ASSIGN_OR_RETURN(spec.image_token_id,
                            read_token_id(config, {"image_token_index", "image_token_id"}, decoder, 262144));
  return spec;
}

// GGUF keeps no query_pre_attn_scalar. It equals head_dim in every published size but 27B, where it is
// hidden_size / num_heads.
float attention_scale(const ModelSpec& spec, const GqaAttention& attention) {
  const bool is_27b = spec.layers.size() == 62 && spec.hidden_size == 5376;
  const int32_t scalar = is_27b ? spec.hidden_size / attention.num_heads : attention.head_dim;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(scalar)));
}

Result<std::vector<bool>> read_gguf_pattern(const GgufReader& gguf, size_t num_layers) {
  const std::string key = gguf.key("attention.sliding_window_pattern");
  const GgufValue* value = gguf.file().find_metadata(key);
  if (value == nullptr) return windowed_by_pattern(num_layers, kDefaultPattern);
  if (!value->is_array()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t pattern, gguf.integer("attention.sliding_window_pattern", 1, INT32_MAX));
    return windowed_by_pattern(num_layers, pattern);
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<uint8_t> flags, gguf.file().get_bool_array(key));
  if (flags.size() != num_layers) return malformed(key, "{} entries for {} layers", flags.size(), num_layers);
  return std::vector<bool>(flags.begin(), flags.end());
}

Result<ModelSpec> gemma3_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf));
  set_common(spec);
  const RopeSpec global = gqa(spec.layers[0]).rope;
  if (!gguf.has("rope.freq_base")) return malformed(gguf.key("rope.freq_base"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const double local_theta, gguf.positive_or("rope.freq_base_swa", kLocalTheta));
  auto local = make_rope(local_theta, global.rotary_dim, {});
  if (!local.ok()) return local.status().within(gguf.key("rope.freq_base_swa"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, gguf.integer("attention.sliding_window", 1, 1 << 28));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_gguf_pattern(gguf, spec.layers.size()));
  set_layers(spec, windowed, global, *local, static_cast<int32_t>(window));
  HEADRACE_ASSIGN_OR_RETURN(const double softcap, gguf.number_or("attn_logit_softcapping", 0));
  HEADRACE_ASSIGN_OR_RETURN(const double final_softcap, gguf.number_or("final_logit_softcapping", 0));
  spec.head.logit_softcap = static_cast<float>(final_softcap);
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).scale = attention_scale(spec, gqa(layer));
    gqa(layer).logit_softcap = static_cast<float>(softcap);
    dense(layer).activation = Activation::kGeluTanh;
  }
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"feed_forward_norm", "pre_feedforward_layernorm"},
    {"post_feed_forward_norm", "post_feedforward_layernorm"},
};
// Published files and those that newer transformers writes put the text model under different prefixes.
WeightNaming wrapped_names(const TensorFile& weights) {
  if (has_prefix(weights, "model.language_model.")) {
    return {"model.language_model.layers.", kLayer, kLanguageModelTopNames, kPlaneTowers, kTiedHead};
  }
  return {"language_model.model.layers.", kLayer, kOldLanguageModelTopNames, kPlaneTowers, kTiedHead};
}

constexpr NamePair kVisionTop[] = {
    {"patch", "vision_tower.vision_model.embeddings.patch_embedding"},
    {"patch", "model.vision_tower.vision_model.embeddings.patch_embedding"},
    {"patch", "model.vision_tower.embeddings.patch_embedding"},
    {"patch", "vision_tower.embeddings.patch_embedding"},
    {"positions", "vision_tower.vision_model.embeddings.position_embedding"},
    {"positions", "model.vision_tower.vision_model.embeddings.position_embedding"},
    {"positions", "model.vision_tower.embeddings.position_embedding"},
    {"positions", "vision_tower.embeddings.position_embedding"},
    {"final_norm", "vision_tower.vision_model.post_layernorm"},
    {"final_norm", "model.vision_tower.vision_model.post_layernorm"},
    {"final_norm", "model.vision_tower.post_layernorm"},
    {"final_norm", "vision_tower.post_layernorm"},
    {"projector.norm", "multi_modal_projector.mm_soft_emb_norm"},
    {"projector.norm", "model.multi_modal_projector.mm_soft_emb_norm"},
    {"projector.linear_1.weight", "multi_modal_projector.mm_input_projection_weight", TensorForm::kTransposed},
    {"projector.linear_1.weight", "model.multi_modal_projector.mm_input_projection_weight", TensorForm::kTransposed},
};

WeightNaming vision_names(const TensorFile& weights) {
  return {plane_layer_prefix(weights), kPlaneEncoderLayer, kVisionTop, {}, {}, /*more_layers=*/false, kPlaneTowers};
}

}  // namespace

WeightNaming gemma_hf_names(const TensorFile&) { return {"model.layers.", kLayer, kHfTopNames, {}, kTiedHead}; }

const Family kGemma3TextFamily = {"gemma3",       "Gemma3ForCausalLM",     "gemma3_text",
                                  "gemma3",       gemma3_text_from_config, gemma3_from_gguf,
                                  gemma_hf_names, dense_gguf_names};
const Family kGemma3Family = {"gemma3",           "Gemma3ForConditionalGeneration",
                              "gemma3",           "",
                              gemma3_from_config, nullptr,
                              wrapped_names,      nullptr,
                              gemma3_vision,      vision_names};

}  // namespace headrace
