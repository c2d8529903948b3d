// What BERT and its descendants have in common: rows that see the whole sequence, heads of their own, their GGUF keys.
#pragma once

#include "model/families/dense_decoder.h"

namespace headrace {

// What the class of a config has behind its layers.
enum class EncoderHead { kPlain, kMaskedLm, kClassifier };

// Rows see both ways, norms are layer norms.
void set_encoder_layers(ModelSpec& spec, bool norm_bias);
// x = norm(x + block(x)) in every layer, and no norm behind the last.
void set_stream_norms(ModelSpec& spec);
// One score for each row of `matrix`, the classifier's weight (its count must be that of id2label where the config has
// that), of the row that `pooling` gives.
Status set_classifier(const ConfigReader& config, const TensorFile& weights, std::string_view matrix, Pooling pooling,
                      ModelSpec& spec);

// pooling_type of GGUF metadata.
Result<Pooling> read_gguf_pooling(const GgufReader& gguf);

// The GGUF metadata of encoders: sizes as decoders have them, pooling_type, segments, and the scoring head (cls,
// cls.output) where the file has one.
Result<ModelSpec> read_encoder_gguf(const GgufReader& gguf, std::span<const std::string_view> more_keys = {});

}  // namespace headrace
