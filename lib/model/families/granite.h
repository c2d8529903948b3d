// The factors of Granite's decoders: on embeddings, scores, residuals and logits.
#pragma once

#include "model/families/dense_decoder.h"

namespace headrace {

inline constexpr std::string_view kGraniteFactors[] = {"attention_multiplier", "residual_multiplier",
                                                       "embedding_multiplier", "logits_scaling"};
inline constexpr std::string_view kGraniteGgufFactors[] = {"attention.scale", "residual_scale", "embedding_scale",
                                                           "logit_scale"};

struct GraniteFactors {
  double attention = 1.0, residual = 1.0, embedding = 1.0, logits = 1.0;
};
Result<GraniteFactors> read_granite_factors(const ConfigReader& config);
Result<GraniteFactors> read_granite_factors(const GgufReader& gguf);
// Of layers of any kind; kMalformed for logits that are divided by zero.
Status set_granite_factors(ModelSpec& spec, const GraniteFactors& factors);

}  // namespace headrace
