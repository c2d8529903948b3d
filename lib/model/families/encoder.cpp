#include "model/families/encoder.h"

#include <nlohmann/json.hpp>

#include "base/format_full.h"

namespace headrace {

namespace {

Result<int32_t> rows_of(const TensorFile& weights, std::string_view name) {
  const TensorEntry* matrix = weights.find(std::string(name));
  if (matrix == nullptr) return not_found(std::string(name), "the file has no such tensor");
  if (matrix->shape.size() != 2 || matrix->shape[0] < 1 || matrix->shape[0] > (1 << 24)) {
    return malformed(std::string(name), "shape [{}] is no matrix of scores", fmt::join(matrix->shape, ", "));
  }
  return static_cast<int32_t>(matrix->shape[0]);
}

}  // namespace

Result<Pooling> read_gguf_pooling(const GgufReader& gguf) {
  constexpr Pooling kPoolings[] = {Pooling::kUnknown, Pooling::kMean, Pooling::kFirst, Pooling::kLast,
                                   Pooling::kUnknown};  // 4: the scoring head's
  HEADRACE_ASSIGN_OR_RETURN(const int64_t type, gguf.integer_or("pooling_type", 0, 4, 0));
  return kPoolings[type];
}

void set_encoder_layers(ModelSpec& spec, bool norm_bias) {
  spec.norm = NormKind::kLayer;
  spec.norm_bias = norm_bias;
  spec.head = HeadSpec();
  spec.head.kind = HeadKind::kNone;
  spec.eos_token_ids.clear();  // nothing is generated
  for (LayerSpec& layer : spec.layers) gqa(layer).both_ways = true;
}

void set_stream_norms(ModelSpec& spec) {
  spec.final_norm = false;
  for (LayerSpec& layer : spec.layers) {
    layer.attention_norm = layer.feed_forward_norm = false;
    layer.stream_norms = true;
  }
}

Status set_classifier(const ConfigReader& config, const TensorFile& weights, std::string_view matrix, Pooling pooling,
                      ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(spec.head.num_labels, rows_of(weights, matrix));
  const nlohmann::json* names = config.find("id2label");
  if (names != nullptr && names->size() != static_cast<size_t>(spec.head.num_labels)) {
    return malformed(config.place_of("id2label"), "{} labels, but {} has {} rows", names->size(), matrix,
                     spec.head.num_labels);
  }
  spec.head.kind = HeadKind::kLabels;
  spec.head.pooling = pooling;
  return {};
}

Result<ModelSpec> read_encoder_gguf(const GgufReader& gguf, std::span<const std::string_view> more_keys) {
  constexpr std::string_view kKeys[] = {"classifier.output_labels"};
  std::vector<std::string_view> keys(std::begin(kKeys), std::end(kKeys));
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = keys, .both_ways = true}));
  const GgufFile& file = gguf.file();
  set_encoder_layers(spec, file.find("token_embd_norm.bias") != nullptr);
  spec.embedding_norm = true;
  HEADRACE_ASSIGN_OR_RETURN(spec.pooling, read_gguf_pooling(gguf));
  if (file.find("token_types.weight") != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(spec.token_types, rows_of(file, "token_types.weight"));
  }
  const bool fused_bias = file.find("blk.0.attn_qkv.bias") != nullptr;
  for (LayerSpec& layer : spec.layers) gqa(layer).qkv_bias |= fused_bias;
  if (file.find("cls.output.weight") == nullptr) return spec;
  HEADRACE_ASSIGN_OR_RETURN(spec.head.num_labels, rows_of(file, "cls.output.weight"));
  spec.head.kind = HeadKind::kLabels;
  spec.head.pooling = Pooling::kFirst;
  spec.head.bias = file.find("cls.output.bias") != nullptr;
  if (file.find("cls.weight") != nullptr) {
    spec.head.transform = TransformSpec{Activation::kTanh, file.find("cls.bias") != nullptr, false};
  }
  return spec;
}

}  // namespace headrace
