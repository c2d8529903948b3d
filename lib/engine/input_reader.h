// What the engine needs of a model with an encoder in front of its decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "media/log_mel.h"
#include "model/encoder_memory.h"
#include "model/encoder_spec.h"

namespace headrace::engine {

// Thread rule: read_input may be called from any thread; calls take turns with the model's forward passes.
class InputReader {
 public:
  virtual ~InputReader() = default;
  virtual const EncoderSpec& encoder() const = 0;
  virtual int32_t decoder_vocab_size() const = 0;
  virtual const Result<LogMelSpec>& audio_processor() const = 0;
  // Runs the encoder; dtype and block_size: those of the cache that the decoder's rows use. A function of the input alone,
  // bit for bit. kOutOfMemory.
  virtual Result<EncoderMemory> read_input(const EncoderInput& input, KvDType dtype, int32_t block_size) = 0;
};

// As make_encoder_input() has them.
Result<std::shared_ptr<const EncoderInput>> make_token_input(const InputReader& reader,
                                                             std::span<const int32_t> tokens);
Result<std::shared_ptr<const EncoderInput>> make_feature_input(const InputReader& reader,
                                                               std::span<const float> features, int64_t num_mels,
                                                               int64_t num_frames);
// kInvalidArgument ("audio") for another rate than the model's and for no samples.
Status check_samples(const LogMelSpec& spec, std::span<const float> samples, uint32_t sample_rate);
// The features of mono samples in [-1, 1], as the model's files have them made; silence follows up to the length that the
// encoder reads. The reason where the files do not say how; kInvalidArgument ("audio") for another rate, no samples, more than
// the encoder reads at once, and values that are not finite.
Result<std::shared_ptr<const EncoderInput>> make_audio_input(const InputReader& reader, std::span<const float> samples,
                                                             uint32_t sample_rate);

}  // namespace headrace::engine
