// T5: an encoder and a decoder with biases by distance, shared by all layers of each, in place of positions, and no scaling of
// scores; a feed-forward with or without a gate. Reference: transformers models/t5.
#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "layer_norm_epsilon",
    "relative_attention_num_buckets", "relative_attention_max_distance", "feed_forward_proj", "dense_act_fn",
    "is_gated_act", "is_encoder_decoder", "decoder_start_token_id", "scale_decoder_outputs",
    // Of training, of other classes, and the length of the texts that a model was trained on: distances have no end.
    "dropout_rate", "classifier_dropout", "initializer_factor", "n_positions", "output_past"};

struct Stack {
  const char* layers_key;
  int64_t default_layers;
  bool both_ways;
};

Status set_feed_forward(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string name, config.text_or("feed_forward_proj", "relu"));
  Activation activation = Activation::kRelu;
  std::string function = name;
  if (name == "gated-gelu") {
    activation = Activation::kGeluTanh;
    function = "gelu_new";
  } else if (name == "gelu") {
    activation = Activation::kGeluErf;
  } else if (name == "gated-silu") {
    activation = Activation::kSilu;
    function = "silu";
  } else if (name != "relu") {
    return unsupported(config.place_of("feed_forward_proj"), "unknown feed-forward '{}'", name);
  }
  const bool gated = name.starts_with("gated-");
  HEADRACE_RETURN_IF_ERROR(config.only("dense_act_fn", function));
  HEADRACE_RETURN_IF_ERROR(config.only("is_gated_act", gated));
  for (LayerSpec& layer : spec.layers) {
    dense(layer).activation = activation;
    dense(layer).gated = gated;
  }
  return {};
}

Result<ModelSpec> read_stack(const ConfigReader& config, const Stack& stack) {
  DenseDefaults defaults;
  defaults.vocab_size = 32128;
  defaults.hidden_size = 512;
  defaults.intermediate_size = 2048;
  defaults.num_layers = stack.default_layers;
  defaults.num_heads = 8;
  defaults.num_kv_heads = -1;
  HEADRACE_ASSIGN_OR_RETURN(defaults.head_dim, config.integer_or("d_kv", 1, 1 << 12, 64));
  defaults.max_position_embeddings = 1 << 20;
  defaults.tied = true;
  defaults.keys = {"d_model", "d_ff", stack.layers_key, "num_heads", "max_position_embeddings", "layer_norm_epsilon"};
  defaults.own_keys = {"is_encoder_decoder"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  HEADRACE_RETURN_IF_ERROR(set_feed_forward(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t buckets, config.integer_or("relative_attention_num_buckets", 1, 1 << 16, 32));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t distance,
                            config.integer_or("relative_attention_max_distance", 1, 1 << 16, 128));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    attention.scale = 1.0f;
    attention.both_ways = stack.both_ways;
    attention.position_buckets =
        PositionBuckets{static_cast<int32_t>(buckets), static_cast<int32_t>(distance), i == 0 ? -1 : 0};
  }
  return spec;
}

Result<int64_t> num_encoder_layers(const ConfigReader& config) { return config.integer_or("num_layers", 1, 4096, 6); }

Result<ModelSpec> decoder_from_config(const ConfigReader& config, const TensorFile& weights) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_encoder_decoder", true));
  HEADRACE_RETURN_IF_ERROR(config.only("is_decoder", false));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layers, num_encoder_layers(config));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_stack(config, {"num_decoder_layers", layers, false}));
  spec.architecture = "t5";
  for (LayerSpec& layer : spec.layers) {
    layer.cross = CrossAttention{gqa(layer).num_heads, gqa(layer).head_dim, 1.0f};
  }
  if (!config.has("eos_token_id") && !config.contains_null("eos_token_id")) spec.eos_token_ids = {1};
  // Said by name in newer configs; in older ones the models whose output is the table have it scaled down.
  HEADRACE_ASSIGN_OR_RETURN(const bool scaled, config.boolean_or("scale_decoder_outputs", spec.head.tied));
  if (scaled) spec.head.logit_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden_size)));
  spec.head.tied = weights.find("lm_head.weight") == nullptr;
  return spec;
}

Result<EncoderSpec> encoder_from_config(const ConfigReader& config, const ModelSpec& decoder) {
  EncoderSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(spec.encoder, read_stack(config, {"num_layers", 6, true}));
  spec.encoder.architecture = "t5_encoder";
  spec.encoder.vocab_size = 0;
  spec.encoder.head = HeadSpec();
  spec.encoder.head.kind = HeadKind::kNone;
  spec.encoder.eos_token_ids.clear();
  spec.encoder.bos_token_id = -1;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t start,
                            config.integer_or("decoder_start_token_id", 0, decoder.vocab_size - 1, -1));
  spec.start_token_id = static_cast<int32_t>(start);
  return spec;
}

constexpr NamePair kDecoderLayer[] = {
    {"q_proj", "layer.0.SelfAttention.q"},
    {"k_proj", "layer.0.SelfAttention.k"},
    {"v_proj", "layer.0.SelfAttention.v"},
    {"o_proj", "layer.0.SelfAttention.o"},
    {"position_bias", "layer.0.SelfAttention.relative_attention_bias"},
    {"attention_norm", "layer.0.layer_norm"},
    {"cross.q_proj", "layer.1.EncDecAttention.q"},
    {"cross.k_proj", "layer.1.EncDecAttention.k"},
    {"cross.v_proj", "layer.1.EncDecAttention.v"},
    {"cross.o_proj", "layer.1.EncDecAttention.o"},
    {"cross_norm", "layer.1.layer_norm"},
    {"gate_proj", "layer.2.DenseReluDense.wi_0"},
    {"up_proj", "layer.2.DenseReluDense.wi_1"},
    {"up_proj", "layer.2.DenseReluDense.wi"},
    {"down_proj", "layer.2.DenseReluDense.wo"},
    {"feed_forward_norm", "layer.2.layer_norm"},
};
constexpr NamePair kEncoderLayer[] = {
    {"q_proj", "layer.0.SelfAttention.q"},
    {"k_proj", "layer.0.SelfAttention.k"},
    {"v_proj", "layer.0.SelfAttention.v"},
    {"o_proj", "layer.0.SelfAttention.o"},
    {"position_bias", "layer.0.SelfAttention.relative_attention_bias"},
    {"attention_norm", "layer.0.layer_norm"},
    {"gate_proj", "layer.1.DenseReluDense.wi_0"},
    {"up_proj", "layer.1.DenseReluDense.wi_1"},
    {"up_proj", "layer.1.DenseReluDense.wi"},
    {"down_proj", "layer.1.DenseReluDense.wo"},
    {"feed_forward_norm", "layer.1.layer_norm"},
};
constexpr NamePair kDecoderTop[] = {
    {"embed", "shared"}, {"final_norm", "decoder.final_layer_norm"}, {"lm_head", "lm_head"}};
constexpr NamePair kEncoderTop[] = {{"final_norm", "encoder.final_layer_norm"}};
constexpr std::string_view kEncoderPrefix[] = {"encoder."};
// Copies of the shared table, and biases that the first files have and nothing reads.
constexpr std::string_view kIgnored[] = {"coder.embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"};

WeightNaming decoder_names(const TensorFile&) {
  return {"decoder.block.", kDecoderLayer, kDecoderTop, kEncoderPrefix, kIgnored};
}
WeightNaming encoder_names(const TensorFile&) {
  return {"encoder.block.", kEncoderLayer, kEncoderTop, {}, kIgnored, /*more_layers=*/false, kEncoderPrefix};
}

}  // namespace

const Family kT5Family = {"t5",
                          "T5ForConditionalGeneration",
                          "t5",
                          "",
                          decoder_from_config,
                          nullptr,
                          decoder_names,
                          nullptr,
                          nullptr,
                          nullptr,
                          encoder_from_config,
                          encoder_names};

}  // namespace headrace
