// BERT, RoBERTa and XLM-RoBERTa: learned positions and segments, a norm after each sum, biases everywhere; alone, with a
// masked-language head or with a classifier. Reference: transformers models/bert, models/roberta, models/xlm_roberta.
#include <algorithm>
#include <array>

#include "model/families/config_keys.h"
#include "model/families/encoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {"layer_norm_eps", "type_vocab_size", "position_embedding_type",
                                         // Of training, of other classes, and of programs around the model.
                                         "classifier_dropout", "num_labels", "finetuning_task", "output_past",
                                         "directionality", "pooler_fc_size", "pooler_num_attention_heads",
                                         "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
                                         "sentence_transformers", "sbert_ce_default_activation_function"};

struct BertDefaults {
  const char* name;
  int64_t vocab_size;
  int64_t type_vocab_size;
  int64_t pad_token_id;
  double norm_eps;
  bool offset_positions;  // by the padding token's id and one
};
constexpr BertDefaults kBert = {"bert", 30522, 2, 0, 1e-12, false};
constexpr BertDefaults kRoberta = {"roberta", 50265, 2, 1, 1e-12, true};
constexpr BertDefaults kXlmRoberta = {"xlm-roberta", 30522, 2, 1, 1e-12, true};

bool has_pooler(const TensorFile& weights) {
  constexpr const char* kNames[] = {"pooler.dense.weight", "bert.pooler.dense.weight", "roberta.pooler.dense.weight"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return weights.find(name) != nullptr; });
}

Status set_positions(const ConfigReader& config, const BertDefaults& defaults, ModelSpec& spec) {
  spec.learned_positions = spec.max_position_embeddings;
  if (!defaults.offset_positions) return {};
  HEADRACE_ASSIGN_OR_RETURN(const int64_t padding,
                            config.integer_or("pad_token_id", 0, spec.vocab_size - 1, defaults.pad_token_id));
  spec.position_padding_id = static_cast<int32_t>(padding);
  spec.max_position_embeddings -= spec.position_padding_id + 1;
  return {};
}

Status set_head(const ConfigReader& config, const TensorFile& weights, const BertDefaults& defaults, EncoderHead kind,
                bool tied, ModelSpec& spec) {
  HeadSpec& head = spec.head;
  if (kind == EncoderHead::kMaskedLm) {
    const bool of_layers = !defaults.offset_positions;  // RoBERTa's is always the exact GELU
    head.kind = HeadKind::kVocabulary;
    head.transform = TransformSpec{of_layers ? dense(spec.layers[0]).activation : Activation::kGeluErf, true, true};
    head.tied = tied;
    head.bias = true;
  } else if (kind == EncoderHead::kClassifier) {
    const char* const matrix = defaults.offset_positions ? "classifier.out_proj.weight" : "classifier.weight";
    HEADRACE_RETURN_IF_ERROR(set_classifier(config, weights, matrix, Pooling::kFirst, spec));
    head.transform = TransformSpec();
    head.bias = true;
  } else if (has_pooler(weights)) {
    head.kind = HeadKind::kTransform;
    head.pooling = Pooling::kFirst;
    head.transform = TransformSpec();
  }
  return {};
}

Result<ModelSpec> read_bert(const ConfigReader& config, const TensorFile& weights, const BertDefaults& defaults,
                            EncoderHead kind) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_decoder", false));
  HEADRACE_RETURN_IF_ERROR(config.only("position_embedding_type", "absolute"));
  DenseDefaults sizes;
  sizes.vocab_size = defaults.vocab_size;
  sizes.hidden_size = 768;
  sizes.intermediate_size = 3072;
  sizes.num_layers = 12;
  sizes.num_heads = 12;
  sizes.num_kv_heads = -1;
  sizes.max_position_embeddings = 512;
  sizes.norm_eps = defaults.norm_eps;
  sizes.tied = true;
  sizes.keys.norm_eps = "layer_norm_eps";
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, sizes));
  const bool tied = spec.head.tied;
  spec.architecture = defaults.name;
  set_encoder_layers(spec, /*norm_bias=*/true);
  set_stream_norms(spec);
  spec.embedding_norm = true;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t types,
                            config.integer_or("type_vocab_size", 0, 1 << 24, defaults.type_vocab_size));
  spec.token_types = static_cast<int32_t>(types);
  LayerChoices choices;
  choices.activation = "gelu";
  choices.attention_bias_key = nullptr;
  choices.attention_bias = choices.feed_forward_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) dense(layer).gated = false;
  HEADRACE_RETURN_IF_ERROR(set_positions(config, defaults, spec));
  HEADRACE_RETURN_IF_ERROR(set_head(config, weights, defaults, kind, tied, spec));
  return spec;
}

template <const BertDefaults& kDefaults, EncoderHead kKind>
Result<ModelSpec> from_config(const ConfigReader& config, const TensorFile& weights) {
  return read_bert(config, weights, kDefaults, kKind);
}

// Old files call a norm's weight gamma and its bias beta.
constexpr NamePair kLayer[] = {
    {"q_proj", "attention.self.query"},
    {"k_proj", "attention.self.key"},
    {"v_proj", "attention.self.value"},
    {"o_proj", "attention.output.dense"},
    {"up_proj", "intermediate.dense"},
    {"down_proj", "output.dense"},
    {"attention_stream_norm", "attention.output.LayerNorm"},
    {"attention_stream_norm.weight", "attention.output.LayerNorm.gamma"},
    {"attention_stream_norm.bias", "attention.output.LayerNorm.beta"},
    {"feed_forward_stream_norm", "output.LayerNorm"},
    {"feed_forward_stream_norm.weight", "output.LayerNorm.gamma"},
    {"feed_forward_stream_norm.bias", "output.LayerNorm.beta"},
};

// Files of the bare model have no prefix; those of a class with a head have one.
constexpr NamePair kEmbeddings[] = {
    {"embed", "embeddings.word_embeddings"},
    {"embed", "bert.embeddings.word_embeddings"},
    {"embed", "roberta.embeddings.word_embeddings"},
    {"positions", "embeddings.position_embeddings"},
    {"positions", "bert.embeddings.position_embeddings"},
    {"positions", "roberta.embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_types", "bert.embeddings.token_type_embeddings"},
    {"token_types", "roberta.embeddings.token_type_embeddings"},
    {"embedding_norm", "embeddings.LayerNorm"},
    {"embedding_norm", "bert.embeddings.LayerNorm"},
    {"embedding_norm", "roberta.embeddings.LayerNorm"},
    {"embedding_norm.weight", "bert.embeddings.LayerNorm.gamma"},
    {"embedding_norm.bias", "bert.embeddings.LayerNorm.beta"},
};
constexpr NamePair kPoolers[] = {
    {"transform", "pooler.dense"}, {"transform", "bert.pooler.dense"}, {"transform", "roberta.pooler.dense"}};
constexpr NamePair kMaskedLm[] = {
    {"transform", "cls.predictions.transform.dense"},
    {"transform", "lm_head.dense"},
    {"transform_norm", "cls.predictions.transform.LayerNorm"},
    {"transform_norm", "lm_head.layer_norm"},
    {"transform_norm.weight", "cls.predictions.transform.LayerNorm.gamma"},
    {"transform_norm.bias", "cls.predictions.transform.LayerNorm.beta"},
    {"lm_head.weight", "cls.predictions.decoder.weight"},
    {"lm_head.weight", "lm_head.decoder.weight"},
    // The first of each is added; the second stands for it where both are one, and else for nothing.
    {"lm_head.bias", "cls.predictions.decoder.bias"},
    {"lm_head.bias", "cls.predictions.bias"},
    {"lm_head.bias", "lm_head.decoder.bias"},
    {"lm_head.bias", "lm_head.bias"},
};
constexpr NamePair kClassifier[] = {
    {"transform", "bert.pooler.dense"},
    {"transform", "classifier.dense"},
    {"lm_head", "classifier"},
    {"lm_head", "classifier.out_proj"},
};

template <size_t kFirst, size_t kSecond>
constexpr std::array<NamePair, kFirst + kSecond> join(const NamePair (&first)[kFirst],
                                                      const NamePair (&second)[kSecond]) {
  std::array<NamePair, kFirst + kSecond> out = {};
  std::copy(std::begin(first), std::end(first), out.begin());
  std::copy(std::begin(second), std::end(second), out.begin() + kFirst);
  return out;
}
constexpr auto kPlainTop = join(kEmbeddings, kPoolers);
constexpr auto kMaskedLmTop = join(kEmbeddings, kMaskedLm);
constexpr auto kClassifierTop = join(kEmbeddings, kClassifier);

// Heads of other tasks that files keep beside the one that their class has, copies of tied weights, and a buffer.
constexpr std::string_view kIgnoredPrefixes[] = {"cls.", "lm_head."};
constexpr std::string_view kIgnoredSuffixes[] = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"};

template <EncoderHead kKind>
WeightNaming hf_names(const TensorFile& weights) {
  std::string_view layers = "encoder.layer.";
  if (has_prefix(weights, "bert.encoder.")) layers = "bert.encoder.layer.";
  if (has_prefix(weights, "roberta.encoder.")) layers = "roberta.encoder.layer.";
  if (kKind == EncoderHead::kMaskedLm) return {layers, kLayer, kMaskedLmTop, kIgnoredPrefixes, kIgnoredSuffixes};
  if (kKind == EncoderHead::kClassifier) return {layers, kLayer, kClassifierTop, kIgnoredPrefixes, kIgnoredSuffixes};
  return {layers, kLayer, kPlainTop, kIgnoredPrefixes, kIgnoredSuffixes};
}

// Converters drop RoBERTa's rows before the first position, poolers and masked-language heads.
Result<ModelSpec> bert_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_encoder_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  spec.architecture = "bert";
  set_stream_norms(spec);
  spec.learned_positions = spec.max_position_embeddings;
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = RopeSpec();
    dense(layer).activation = Activation::kGeluErf;
    dense(layer).gated = false;
  }
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_stream_norm", "attn_output_norm"},
    {"feed_forward_stream_norm", "layer_output_norm"},
};
constexpr NamePair kGgufTop[] = {
    {"embed", "token_embd"}, {"positions", "position_embd"}, {"token_types", "token_types"},
    {"transform", "cls"},    {"lm_head", "cls.output"},      {"embedding_norm", "token_embd_norm"},
};

WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, {}}; }

// A class with folders alone.
template <const BertDefaults& kDefaults, EncoderHead kKind>
constexpr Family folder_family(std::string_view hf_architecture) {
  return {kDefaults.name, hf_architecture, kDefaults.name, "", from_config<kDefaults, kKind>,
          nullptr,        hf_names<kKind>, nullptr};
}

constexpr Family with_gguf(Family family) {
  family.gguf_architecture = "bert";
  family.from_gguf = bert_from_gguf;
  family.gguf_names = gguf_names;
  return family;
}

}  // namespace

const Family kBertFamily = with_gguf(folder_family<kBert, EncoderHead::kPlain>("BertModel"));
const Family kBertMlmFamily = folder_family<kBert, EncoderHead::kMaskedLm>("BertForMaskedLM");
const Family kBertScoreFamily = folder_family<kBert, EncoderHead::kClassifier>("BertForSequenceClassification");
const Family kRobertaFamily = folder_family<kRoberta, EncoderHead::kPlain>("RobertaModel");
const Family kRobertaMlmFamily = folder_family<kRoberta, EncoderHead::kMaskedLm>("RobertaForMaskedLM");
const Family kRobertaScoreFamily =
    folder_family<kRoberta, EncoderHead::kClassifier>("RobertaForSequenceClassification");
const Family kXlmRobertaFamily = folder_family<kXlmRoberta, EncoderHead::kPlain>("XLMRobertaModel");
const Family kXlmRobertaMlmFamily = folder_family<kXlmRoberta, EncoderHead::kMaskedLm>("XLMRobertaForMaskedLM");
const Family kXlmRobertaScoreFamily =
    folder_family<kXlmRoberta, EncoderHead::kClassifier>("XLMRobertaForSequenceClassification");

}  // namespace headrace
