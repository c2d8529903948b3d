// T5: an encoder and a decoder with biases by distance, shared by all layers of each, in place of positions, and no scaling of
// scores; a feed-forward with or without a gate. The encoder is a model of its own too. Reference: transformers models/t5.
#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/encoder.h"

namespace headrace {

namespace {

constexpr int32_t kAnyPosition = 1 << 20;  // distances have no end

constexpr std::string_view kOwnKeys[] = {
    "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "layer_norm_epsilon",
    "relative_attention_num_buckets", "relative_attention_max_distance", "feed_forward_proj", "dense_act_fn",
    "is_gated_act", "is_encoder_decoder", "decoder_start_token_id", "scale_decoder_outputs",
    // Of training, of other classes, and the length of the texts that a model was trained on.
    "dropout_rate", "classifier_dropout", "initializer_factor", "n_positions", "output_past"};

struct Stack {
  const char* layers_key;
  int64_t default_layers;
  bool both_ways;
};

// What becomes of a stack in front of a decoder, which gives its rows.
void set_no_head(ModelSpec& spec) {
  spec.architecture = "t5_encoder";
  spec.head = HeadSpec();
  spec.head.kind = HeadKind::kNone;
  spec.eos_token_ids.clear();
  spec.bos_token_id = -1;
}

void set_cross_attention(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    layer.cross = CrossAttention{gqa(layer).num_heads, gqa(layer).head_dim, 1.0f};
  }
}

void scale_down_outputs(ModelSpec& spec) {
  spec.head.logit_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden_size)));
}

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
  defaults.max_position_embeddings = kAnyPosition;
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
  set_cross_attention(spec);
  if (!config.has("eos_token_id") && !config.contains_null("eos_token_id")) spec.eos_token_ids = {1};
  // Said by name in newer configs; in older ones the models whose output is the table have it scaled down.
  HEADRACE_ASSIGN_OR_RETURN(const bool scaled, config.boolean_or("scale_decoder_outputs", spec.head.tied));
  if (scaled) scale_down_outputs(spec);
  spec.head.tied = weights.find("lm_head.weight") == nullptr;
  return spec;
}

Result<EncoderSpec> encoder_from_config(const ConfigReader& config, const ModelSpec& decoder) {
  EncoderSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(spec.encoder, read_stack(config, {"num_layers", 6, true}));
  set_no_head(spec.encoder);
  spec.encoder.vocab_size = 0;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t start,
                            config.integer_or("decoder_start_token_id", 0, decoder.vocab_size - 1, -1));
  spec.start_token_id = static_cast<int32_t>(start);
  return spec;
}

// The encoder alone. Its sequences are computed whole, of no more tokens than the config says texts had.
Result<ModelSpec> encoder_alone_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_decoder", false));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_stack(config, {"num_layers", 6, true}));
  set_no_head(spec);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t longest, config.integer_or("n_positions", 1, kAnyPosition, 512));
  spec.max_position_embeddings = static_cast<int32_t>(longest);
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
constexpr NamePair kEncoderTop[] = {
    {"embed", "shared"}, {"embed", "encoder.embed_tokens"}, {"final_norm", "encoder.final_layer_norm"}};
constexpr std::string_view kEncoderPrefix[] = {"encoder."};
constexpr std::string_view kDecoderParts[] = {"decoder.", "lm_head."};
// Copies of the shared table, and biases that the first files have and nothing reads.
constexpr std::string_view kIgnored[] = {"coder.embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"};

WeightNaming decoder_names(const TensorFile&) {
  return {"decoder.block.", kDecoderLayer, kDecoderTop, kEncoderPrefix, kIgnored};
}
WeightNaming encoder_names(const TensorFile&) {
  return {"encoder.block.", kEncoderLayer, kEncoderTop, {}, kIgnored, /*more_layers=*/false, kEncoderPrefix};
}

WeightNaming encoder_alone_names(const TensorFile&) {
  return {"encoder.block.", kEncoderLayer, kEncoderTop, kDecoderParts, kIgnored};
}

// ---- GGUF. Files leave out what llama.cpp holds for every model: the farthest distance, and ReLU, or GELU with a gate.

constexpr int32_t kGgufMaxDistance = 128;
constexpr std::string_view kGgufBuckets = "attention.relative_buckets_count";
constexpr std::string_view kGgufEncoderKeys[] = {kGgufBuckets};
constexpr std::string_view kGgufKeys[] = {kGgufBuckets, "decoder_block_count", "decoder_start_token_id"};

// prefix: of the names of the stack's layers. A layer has biases of its own where the file has them (umT5).
Result<ModelSpec> read_gguf_stack(const GgufReader& gguf, std::span<const std::string_view> keys,
                                  std::string_view prefix, int64_t num_layers, bool both_ways) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = keys}));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  // Files have the same number under both names; the norms are RMS norms.
  constexpr std::string_view kEpsilon = "attention.layer_norm_rms_epsilon";
  if (!gguf.has(kEpsilon)) return malformed(gguf.key(kEpsilon), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const double epsilon, gguf.positive_or(kEpsilon, 0));
  spec.norm = NormKind::kRms;
  spec.norm_eps = static_cast<float>(epsilon);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t buckets, gguf.integer(kGgufBuckets, 1, 1 << 16));
  const auto has = [&](size_t layer, std::string_view name) {
    return gguf.file().find(fmt::format("{}{}.{}.weight", prefix, layer, name)) != nullptr;
  };
  const bool gated = has(0, "ffn_gate");
  spec.layers.resize(static_cast<size_t>(num_layers), spec.layers[0]);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaAttention& attention = gqa(spec.layers[i]);
    attention.rope = RopeSpec();
    attention.scale = 1.0f;
    attention.both_ways = both_ways;
    const int32_t owner = i == 0 || has(i, "attn_rel_b") ? -1 : 0;
    attention.position_buckets = PositionBuckets{static_cast<int32_t>(buckets), kGgufMaxDistance, owner};
    dense(spec.layers[i]).activation = gated ? Activation::kGeluTanh : Activation::kRelu;
    dense(spec.layers[i]).gated = gated;
  }
  return spec;
}

Result<int64_t> num_gguf_layers(const GgufReader& gguf) { return gguf.integer("block_count", 1, 4096); }

Result<ModelSpec> decoder_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t encoder_layers, num_gguf_layers(gguf));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layers, gguf.integer_or("decoder_block_count", 1, 4096, encoder_layers));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_gguf_stack(gguf, kGgufKeys, "dec.blk.", layers, false));
  spec.architecture = "t5";
  spec.max_position_embeddings = kAnyPosition;
  set_cross_attention(spec);
  // The models whose output is the table are those whose config calls the two tied.
  if (spec.head.tied) scale_down_outputs(spec);
  return spec;
}

Result<EncoderSpec> encoder_from_gguf(const GgufReader& gguf, const ModelSpec& decoder) {
  EncoderSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layers, num_gguf_layers(gguf));
  HEADRACE_ASSIGN_OR_RETURN(spec.encoder, read_gguf_stack(gguf, kGgufKeys, "enc.blk.", layers, true));
  set_no_head(spec.encoder);
  spec.encoder.vocab_size = 0;
  spec.encoder.max_position_embeddings = kAnyPosition;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t start,
                            gguf.integer_or("decoder_start_token_id", 0, decoder.vocab_size - 1, -1));
  spec.start_token_id = static_cast<int32_t>(start);
  return spec;
}

Result<ModelSpec> encoder_alone_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t layers, num_gguf_layers(gguf));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_gguf_stack(gguf, kGgufEncoderKeys, "enc.blk.", layers, true));
  set_no_head(spec);
  HEADRACE_ASSIGN_OR_RETURN(spec.pooling, read_gguf_pooling(gguf));
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_o"},
    {"position_bias", "attn_rel_b"},
    {"attention_norm", "attn_norm"},
    {"cross.q_proj", "cross_attn_q"},
    {"cross.k_proj", "cross_attn_k"},
    {"cross.v_proj", "cross_attn_v"},
    {"cross.o_proj", "cross_attn_o"},
    {"cross_norm", "cross_attn_norm"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"feed_forward_norm", "ffn_norm"},
};
constexpr NamePair kGgufDecoderTop[] = {
    {"embed", "token_embd"}, {"final_norm", "dec.output_norm"}, {"lm_head", "output"}};
constexpr NamePair kGgufEncoderTop[] = {{"embed", "token_embd"}, {"final_norm", "enc.output_norm"}};
constexpr std::string_view kGgufEncoderPrefix[] = {"enc."};
constexpr std::string_view kGgufIgnored[] = {"cross_attn_rel_b.weight"};  // which nothing reads

WeightNaming gguf_decoder_names() {
  return {"dec.blk.", kGgufLayer, kGgufDecoderTop, kGgufEncoderPrefix, kGgufIgnored};
}
WeightNaming gguf_encoder_names() {
  return {"enc.blk.", kGgufLayer, kGgufEncoderTop, {}, {}, /*more_layers=*/false, kGgufEncoderPrefix};
}
WeightNaming gguf_encoder_alone_names() { return {"enc.blk.", kGgufLayer, kGgufEncoderTop, {}, {}}; }

}  // namespace

const Family kT5Family = {"t5",
                          "T5ForConditionalGeneration",
                          "t5",
                          "t5",
                          decoder_from_config,
                          decoder_from_gguf,
                          decoder_names,
                          gguf_decoder_names,
                          nullptr,
                          nullptr,
                          encoder_from_config,
                          encoder_names,
                          encoder_from_gguf,
                          gguf_encoder_names};

const Family kT5EncoderFamily = {"t5_encoder",        "T5EncoderModel",          "t5",
                                 "t5encoder",         encoder_alone_from_config, encoder_alone_from_gguf,
                                 encoder_alone_names, gguf_encoder_alone_names};

}  // namespace headrace
