// The weights of an encoder in front of a decoder, as a backend holds them.
#pragma once

#include <vector>

#include "model/encoder_spec.h"
#include "model/weights.h"

namespace headrace {

// Immutable once loaded.
struct EncoderWeights {
  LinearWeight conv_1, conv_2;  // [hidden_size, channels * 3], empty without a front end for audio
  ModelWeights encoder;
  uint64_t bytes = 0;  // of all

  // As ModelWeights::load; of entries that resolve_weights gave for list_encoder_weights.
  static Result<EncoderWeights> load(const EncoderSpec& spec, const std::vector<WeightEntry>& entries,
                                     const TensorFile& file, const PackOptions& options, Backend& backend);
};

}  // namespace headrace
