// ModernBERT: norms before the blocks, none before the first, most layers see a window on either side and rotate by
// frequencies of their own, GeGLU. Reference: transformers models/modernbert.
#include <array>

#include "model/families/config_keys.h"
#include "model/families/encoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr double kFullTheta = 160000.0;
constexpr double kLocalTheta = 10000.0;
constexpr int64_t kDefaultPattern = 3;  // every third layer sees everything, the first among them

constexpr std::string_view kOwnKeys[] = {
    "hidden_activation", "norm_eps", "norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias",
    "classifier_activation", "classifier_pooling", "local_attention", "layer_types", "global_attn_every_n_layers",
    "global_rope_theta", "local_rope_theta", "cls_token_id", "sep_token_id",
    // Of training, of how a file is run, and of older classes.
    "classifier_dropout", "embedding_dropout", "mlp_dropout", "initializer_cutoff_factor", "deterministic_flash_attn",
    "reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index", "layer_norm_eps",
    "position_embedding_type", "num_labels", "sentence_transformers"};

// keys: how many on either side a row sees, and itself.
void set_layers(ModelSpec& spec, const std::vector<bool>& windowed, const RopePair& ropes, int64_t half_window) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).rope = windowed[i] ? ropes.sliding : ropes.full;
    gqa(spec.layers[i]).window = windowed[i] ? static_cast<int32_t>(half_window) + 1 : 0;
  }
  spec.layers[0].attention_norm = false;
  spec.embedding_norm = true;
}

std::vector<bool> windowed_by_pattern(size_t num_layers, int64_t pattern) {
  std::vector<bool> windowed(num_layers);
  for (size_t i = 0; i < num_layers; ++i) windowed[i] = static_cast<int64_t>(i) % pattern != 0;
  return windowed;
}

Result<RopePair> read_ropes(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const double full_theta, config.positive_or("global_rope_theta", kFullTheta));
  const double local_default = config.contains_null("local_rope_theta") ? full_theta : kLocalTheta;
  HEADRACE_ASSIGN_OR_RETURN(const double local_theta, config.positive_or("local_rope_theta", local_default));
  HEADRACE_RETURN_IF_ERROR(config.only("rope_scaling", nullptr));
  HEADRACE_RETURN_IF_ERROR(config.only("rope_theta", nullptr));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  if (nested.has("full_attention") || nested.has("sliding_attention")) {
    return read_rope_pair(config, spec, full_theta, local_theta);
  }
  if (config.has("rope_parameters")) {
    return unsupported(config.place_of("rope_parameters"), "expected full_attention and sliding_attention");
  }
  const int32_t head_dim = gqa(spec.layers[0]).head_dim;
  auto full = make_rope(full_theta, head_dim, {});
  if (!full.ok()) return full.status().within(config.place_of("global_rope_theta"));
  auto local = make_rope(local_theta, head_dim, {});
  if (!local.ok()) return local.status().within(config.place_of("local_rope_theta"));
  return RopePair{full.take(), local.take()};
}

Status set_head(const ConfigReader& config, const TensorFile& weights, EncoderHead kind, bool tied, ModelSpec& spec) {
  if (kind == EncoderHead::kPlain) return {};
  HeadSpec& head = spec.head;
  TransformSpec transform;
  HEADRACE_ASSIGN_OR_RETURN(transform.activation, read_activation(config, "classifier_activation", "gelu"));
  HEADRACE_ASSIGN_OR_RETURN(transform.bias, config.boolean_or("classifier_bias", false));
  transform.norm = true;
  head.transform = transform;
  if (kind == EncoderHead::kMaskedLm) {
    head.kind = HeadKind::kVocabulary;
    head.tied = tied;
    HEADRACE_ASSIGN_OR_RETURN(head.bias, config.boolean_or("decoder_bias", true));
    return {};
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::string pooling, config.text_or("classifier_pooling", "cls"));
  if (pooling != "cls" && pooling != "mean") {
    return unsupported(config.place_of("classifier_pooling"), "unknown pooling '{}'", pooling);
  }
  head.bias = true;
  return set_classifier(config, weights, "classifier.weight", pooling == "cls" ? Pooling::kFirst : Pooling::kMean,
                        spec);
}

Result<ModelSpec> read_modern_bert(const ConfigReader& config, const TensorFile& weights, EncoderHead kind) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_decoder", false));
  DenseDefaults defaults;
  defaults.vocab_size = 50368;
  defaults.hidden_size = 768;
  defaults.intermediate_size = 1152;
  defaults.num_layers = 22;
  defaults.num_heads = 12;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 8192;
  defaults.norm_eps = 1e-5;
  defaults.tied = true;
  defaults.keys.norm_eps = "norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  const bool tied = spec.head.tied;
  spec.architecture = "modern-bert";
  HEADRACE_ASSIGN_OR_RETURN(const bool norm_bias, config.boolean_or("norm_bias", false));
  set_encoder_layers(spec, norm_bias);
  HEADRACE_ASSIGN_OR_RETURN(const RopePair ropes, read_ropes(config, spec));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("local_attention", 1, 1 << 28, 128));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t pattern,
                            config.integer_or("global_attn_every_n_layers", 1, INT32_MAX, kDefaultPattern));
  if (windowed.empty()) windowed = windowed_by_pattern(spec.layers.size(), pattern);
  set_layers(spec, windowed, ropes, window / 2);
  LayerChoices choices;
  choices.activation_key = "hidden_activation";
  choices.activation = "gelu";
  choices.feed_forward_bias_key = "mlp_bias";
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  HEADRACE_RETURN_IF_ERROR(set_head(config, weights, kind, tied, spec));
  return spec;
}

template <EncoderHead kKind>
Result<ModelSpec> from_config(const ConfigReader& config, const TensorFile& weights) {
  return read_modern_bert(config, weights, kKind);
}

constexpr NamePair kLayer[] = {
    {"q_proj", "attn.Wqkv"}, {"k_proj", "attn.Wqkv"},         {"v_proj", "attn.Wqkv"},
    {"o_proj", "attn.Wo"},   {"gate_proj", "mlp.Wi"},         {"up_proj", "mlp.Wi"},
    {"down_proj", "mlp.Wo"}, {"attention_norm", "attn_norm"}, {"feed_forward_norm", "mlp_norm"},
};
constexpr NamePair kTop[] = {
    {"embed", "model.embeddings.tok_embeddings"},
    {"embed", "embeddings.tok_embeddings"},
    {"embedding_norm", "model.embeddings.norm"},
    {"embedding_norm", "embeddings.norm"},
    {"final_norm", "model.final_norm"},
    {"final_norm", "final_norm"},
    {"transform", "head.dense"},
    {"transform_norm", "head.norm"},
};
constexpr NamePair kMaskedLm[] = {{"lm_head", "decoder"}};
constexpr NamePair kClassifier[] = {{"lm_head", "classifier"}};
// Heads that files of the bare model may keep, and the copy of tied embeddings.
constexpr std::string_view kIgnored[] = {"decoder.", "head."};
constexpr std::string_view kTiedCopy[] = {"decoder.weight"};

template <EncoderHead kKind>
WeightNaming hf_names(const TensorFile& weights) {
  const bool bare = has_prefix(weights, "layers.");
  const std::string_view layers = bare ? "layers." : "model.layers.";
  static constexpr auto kNames = [] {
    std::array<NamePair, std::size(kTop) + 1> out = {};
    std::copy(std::begin(kTop), std::end(kTop), out.begin());
    out.back() = kKind == EncoderHead::kClassifier ? kClassifier[0] : kMaskedLm[0];
    return out;
  }();
  if (kKind == EncoderHead::kMaskedLm) return {layers, kLayer, kNames, {}, kTiedCopy};
  if (kKind == EncoderHead::kClassifier) return {layers, kLayer, kNames, std::span(kIgnored).first(1), {}};
  return {layers, kLayer, kNames, kIgnored, {}};
}

Result<ModelSpec> from_gguf(const GgufReader& gguf) {
  constexpr std::string_view kRead[] = {"attention.sliding_window", "attention.sliding_window_pattern",
                                        "rope.freq_base_swa"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_encoder_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf, kRead));
  spec.architecture = "modern-bert";
  const RopeSpec full = gqa(spec.layers[0]).rope;
  if (!gguf.has("rope.freq_base")) return malformed(gguf.key("rope.freq_base"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const double local_theta, gguf.positive_or("rope.freq_base_swa", kLocalTheta));
  auto local = make_rope(local_theta, full.rotary_dim, {});
  if (!local.ok()) return local.status().within(gguf.key("rope.freq_base_swa"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, gguf.integer("attention.sliding_window", 1, 1 << 28));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t pattern,
                            gguf.integer_or("attention.sliding_window_pattern", 1, INT32_MAX, kDefaultPattern));
  set_layers(spec, windowed_by_pattern(spec.layers.size(), pattern), {full, local.take()}, window / 2);
  for (LayerSpec& layer : spec.layers) {
    dense(layer).gated = true;
    dense(layer).activation = Activation::kGeluErf;
  }
  if (spec.head.transform) {
    spec.head.transform->activation = Activation::kGeluErf;
    spec.head.transform->norm = gguf.file().find("cls.norm.weight") != nullptr;
  }
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_qkv"},    {"k_proj", "attn_qkv"},          {"v_proj", "attn_qkv"},
    {"o_proj", "attn_output"}, {"gate_proj", "ffn_up"},         {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"}, {"attention_norm", "attn_norm"}, {"feed_forward_norm", "ffn_norm"},
};
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"},        {"embedding_norm", "token_embd_norm"},
                                 {"final_norm", "output_norm"},  {"transform", "cls"},
                                 {"transform_norm", "cls.norm"}, {"lm_head", "cls.output"}};

WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, {}}; }

}  // namespace

const Family kModernBertFamily = {"modern-bert",
                                  "ModernBertModel",
                                  "modernbert",
                                  "modern-bert",
                                  from_config<EncoderHead::kPlain>,
                                  from_gguf,
                                  hf_names<EncoderHead::kPlain>,
                                  gguf_names};
const Family kModernBertMlmFamily = {
    "modern-bert", "ModernBertForMaskedLM",          "modernbert", "", from_config<EncoderHead::kMaskedLm>,
    nullptr,       hf_names<EncoderHead::kMaskedLm>, nullptr};
const Family kModernBertScoreFamily = {
    "modern-bert", "ModernBertForSequenceClassification", "modernbert", "", from_config<EncoderHead::kClassifier>,
    nullptr,       hf_names<EncoderHead::kClassifier>,    nullptr};

}  // namespace headrace
