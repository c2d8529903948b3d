// Runs an encoder in front of a decoder: a request's input to what the decoder's layers see of it.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "model/encoder_memory.h"
#include "model/encoder_spec.h"
#include "model/encoder_weights.h"
#include "model/forward.h"
#include "ops/backend.h"

namespace headrace {

// Thread rule: one run at a time, and none beside other ops of the backend. Keeps references to all it is given, which must
// outlive it and stay.
class InputEncoder {
 public:
  InputEncoder(const EncoderSpec& spec, const EncoderWeights& weights, const ModelSpec& decoder,
               const ModelWeights& decoder_weights, Backend& backend);

  // out [rows, hidden_size]: behind the encoder's last norm. A function of the input alone, bit for bit. kOutOfMemory.
  Status encode(const EncoderInput& input, std::vector<float>& out);
  // Keys and values of such rows for each layer with cross-attention. kOutOfMemory.
  Result<EncoderMemory> remember(std::span<const float> rows, KvDType dtype, int32_t block_size);

 private:
  Status embed(const EncoderInput& input, std::vector<float>& rows);
  void convolve(const std::vector<float>& x, int64_t channels, int64_t frames, int64_t stride,
                const LinearWeight& kernel, std::vector<float>& rows);

  const EncoderSpec& spec_;
  const EncoderWeights& weights_;
  const ModelSpec& decoder_;
  const ModelWeights& decoder_weights_;
  Backend& backend_;
  ForwardPass forward_;
};

}  // namespace headrace
