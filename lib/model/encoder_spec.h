// An encoder in front of a decoder as data: what it reads, and its layers, a ModelSpec whose rows see each other. What the
// decoder sees of its rows, LayerSpec::cross says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "media/log_mel.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace headrace {

class JsonWriter;

// Frames of a spectrogram to rows: two convolutions over three frames each, zeros beyond the ends, an activation after both;
// the second gives a row for every other frame.
struct AudioFrontEnd {
  int32_t num_mels = 0;
  int32_t num_frames = 0;  // of an input, even
  Activation activation = Activation::kGeluErf;
  bool operator==(const AudioFrontEnd&) const = default;
};

struct EncoderSpec {
  ModelSpec encoder;                   // vocab_size 0: its rows are given
  std::optional<AudioFrontEnd> audio;  // absent: it reads tokens, whose rows are those of the decoder's table
  int32_t start_token_id = -1;         // the decoder's prompt where a request gives none
  bool operator==(const EncoderSpec&) const = default;
};

// What an encoder reads for a request. Immutable.
struct EncoderInput {
  std::vector<int32_t> tokens;  // or
  std::vector<float> features;  // [num_mels, num_frames]
  Hash128 content;              // of all that: what a decoder's cached keys and values depend on beside its tokens
};

// kUnsupported where the encoder reads something else, kInvalidArgument ("encoder_input") for no tokens or other sizes than the
// model's, ("tokens[i]") for an id outside the decoder's vocabulary, and for values that are not finite.
Result<EncoderInput> make_encoder_input(const EncoderSpec& spec, int32_t vocab_size, std::span<const int32_t> tokens);
Result<EncoderInput> make_encoder_input(const EncoderSpec& spec, std::span<const float> features, int64_t num_mels,
                                        int64_t num_frames);

// How a waveform becomes features, as preprocessor_config.json says (read_log_mel); kMalformed where that is of other sizes than
// the encoder takes.
Result<LogMelSpec> read_audio_processor(const AudioFrontEnd& audio, const nlohmann::json& config);

// As validate_spec.
Status validate_encoder(const EncoderSpec& spec, const ModelSpec& decoder);
// Members of the open object.
void write_encoder(JsonWriter& out, const EncoderSpec& spec, bool with_frequencies);
std::string encoder_to_json(const EncoderSpec& spec);
// Every weight under our names: those of the encoder's layers, and conv_1.*, conv_2.*.
std::vector<WeightEntry> list_encoder_weights(const EncoderSpec& spec);

}  // namespace headrace
