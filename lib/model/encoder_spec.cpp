#include "model/encoder_spec.h"

#include <algorithm>
#include <cmath>

#include "formats/json_writer.h"
#include "model/weight_names.h"

namespace headrace {

namespace {

constexpr int64_t kMaxMels = 1 << 12;
constexpr int64_t kMaxFrames = 1 << 20;

Status check_range(const std::string& place, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) return malformed("encoder." + place, "{} is outside [{}, {}]", value, low, high);
  return {};
}

Hash128 hash_of(char kind, const void* data, size_t bytes) {
  const Hash128 values = hash128(data, bytes);
  const uint64_t key[] = {values.high, values.low, static_cast<uint64_t>(kind)};
  return hash128(key, sizeof key);
}

}  // namespace

Result<EncoderInput> make_encoder_input(const EncoderSpec& spec, int32_t vocab_size, std::span<const int32_t> tokens) {
  if (spec.audio) return unsupported("encoder_input", "the model's encoder reads audio, not tokens");
  if (tokens.empty()) return invalid_argument("encoder_input", "has no tokens");
  if (tokens.size() > static_cast<size_t>(spec.encoder.max_position_embeddings)) {
    return invalid_argument("encoder_input", "{} tokens are more than the {} that an encoder reads", tokens.size(),
                            spec.encoder.max_position_embeddings);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return invalid_argument(fmt::format("tokens[{}]", i), "{} is outside the vocabulary of {}", tokens[i], vocab_size);
  }
  EncoderInput out;
  out.tokens.assign(tokens.begin(), tokens.end());
  out.content = hash_of('t', tokens.data(), tokens.size_bytes());
  return out;
}

Result<EncoderInput> make_encoder_input(const EncoderSpec& spec, std::span<const float> features, int64_t num_mels,
                                        int64_t num_frames) {
  if (!spec.audio) return unsupported("encoder_input", "the model's encoder reads tokens, not audio");
  if (num_mels != spec.audio->num_mels || num_frames != spec.audio->num_frames ||
      features.size() != static_cast<size_t>(num_mels * num_frames)) {
    return invalid_argument("encoder_input", "{} values for {} bands of {} frames, the model takes {} of {}",
                            features.size(), num_mels, num_frames, spec.audio->num_mels, spec.audio->num_frames);
  }
  const auto bad = std::ranges::find_if(features, [](float value) { return !std::isfinite(value); });
  if (bad != features.end()) {
    return invalid_argument("encoder_input", "value {} is not finite", bad - features.begin());
  }
  EncoderInput out;
  out.features.assign(features.begin(), features.end());
  out.content = hash_of('f', features.data(), features.size_bytes());
  return out;
}

Result<LogMelSpec> read_audio_processor(const AudioFrontEnd& audio, const nlohmann::json& config) {
  HEADRACE_ASSIGN_OR_RETURN(const LogMelSpec spec, read_log_mel(config));
  if (spec.num_mels == audio.num_mels && spec.num_frames() == audio.num_frames) return spec;
  return malformed("preprocessor_config.json", "{} bands of {} frames, but the model takes {} of {}", spec.num_mels,
                   spec.num_frames(), audio.num_mels, audio.num_frames);
}

Status validate_encoder(const EncoderSpec& spec, const ModelSpec& decoder) {
  if (const Status status = validate_spec(spec.encoder); !status.ok()) return status.within("encoder");
  if (spec.encoder.vocab_size != 0 || spec.encoder.head.kind != HeadKind::kNone) {
    return internal_error("encoder", "is one with tokens or a head of its own");
  }
  if (spec.encoder.hidden_size != decoder.hidden_size) {
    return malformed("encoder.hidden_size", "{} is not the decoder's {}", spec.encoder.hidden_size,
                     decoder.hidden_size);
  }
  if (!has_cross_attention(decoder)) return internal_error("encoder", "no layer sees its rows");
  HEADRACE_RETURN_IF_ERROR(check_range("start_token_id", spec.start_token_id, -1, decoder.vocab_size - 1));
  if (!spec.audio) return {};
  HEADRACE_RETURN_IF_ERROR(check_range("num_mels", spec.audio->num_mels, 1, kMaxMels));
  HEADRACE_RETURN_IF_ERROR(check_range("num_frames", spec.audio->num_frames, 2, kMaxFrames));
  if (spec.audio->num_frames != 2 * spec.encoder.max_position_embeddings) {
    return malformed("encoder.num_frames", "{} are not two for each of {} positions", spec.audio->num_frames,
                     spec.encoder.max_position_embeddings);
  }
  return {};
}

void write_encoder(JsonWriter& out, const EncoderSpec& spec, bool with_frequencies) {
  out.member("reads", spec.audio ? "audio" : "tokens");
  if (spec.audio) {
    out.member("num_mels", spec.audio->num_mels);
    out.member("num_frames", spec.audio->num_frames);
    out.member("activation", activation_name(spec.audio->activation));
  }
  out.member("start_token_id", spec.start_token_id);
  out.key("layers_of");
  out.begin_object();
  write_spec(out, spec.encoder, with_frequencies);
  out.end_object();
}

std::string encoder_to_json(const EncoderSpec& spec) {
  JsonWriter out;
  out.begin_object();
  write_encoder(out, spec, true);
  out.end_object();
  return out.take();
}

std::vector<WeightEntry> list_encoder_weights(const EncoderSpec& spec) {
  std::vector<WeightEntry> out = list_weights(spec.encoder);
  if (!spec.audio) return out;
  const auto hidden = static_cast<uint64_t>(spec.encoder.hidden_size);
  const auto mels = static_cast<uint64_t>(spec.audio->num_mels);
  for (const auto& [name, channels] : {std::pair("conv_1", mels), std::pair("conv_2", hidden)}) {
    WeightEntry kernel{fmt::format("{}.weight", name), "", {hidden, 3 * channels}};
    kernel.file_shape = {hidden, channels, 3};
    out.push_back(std::move(kernel));
    out.push_back({fmt::format("{}.bias", name), "", {hidden}});
  }
  return out;
}

}  // namespace headrace
