#include "engine/input_reader.h"

namespace headrace::engine {

namespace {

Result<std::shared_ptr<const EncoderInput>> shared(Result<EncoderInput> made) {
  if (!made.ok()) return made.status();
  return std::shared_ptr<const EncoderInput>(std::make_shared<EncoderInput>(made.take()));
}

}  // namespace

Result<std::shared_ptr<const EncoderInput>> make_token_input(const InputReader& reader,
                                                             std::span<const int32_t> tokens) {
  return shared(make_encoder_input(reader.encoder(), reader.decoder_vocab_size(), tokens));
}

Result<std::shared_ptr<const EncoderInput>> make_feature_input(const InputReader& reader,
                                                               std::span<const float> features, int64_t num_mels,
                                                               int64_t num_frames) {
  return shared(make_encoder_input(reader.encoder(), features, num_mels, num_frames));
}

Status check_samples(const LogMelSpec& spec, std::span<const float> samples, uint32_t sample_rate) {
  if (sample_rate != static_cast<uint32_t>(spec.sample_rate)) {
    return invalid_argument("audio", "{} samples a second; the model takes {}", sample_rate, spec.sample_rate);
  }
  return samples.empty() ? invalid_argument("audio", "has no samples") : Status();
}

Result<std::shared_ptr<const EncoderInput>> make_audio_input(const InputReader& reader, std::span<const float> samples,
                                                             uint32_t sample_rate) {
  if (!reader.encoder().audio) return unsupported("audio", "the model's encoder reads tokens");
  HEADRACE_RETURN_IF_ERROR(reader.audio_processor().status());
  const LogMelSpec& spec = *reader.audio_processor();
  HEADRACE_RETURN_IF_ERROR(check_samples(spec, samples, sample_rate));
  if (samples.size() > static_cast<size_t>(spec.num_samples)) {
    return invalid_argument("audio", "{} samples are more than the {} that the model reads at once", samples.size(),
                            spec.num_samples);
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> features, log_mel(spec, samples));
  return make_feature_input(reader, features, spec.num_mels, spec.num_frames());
}

}  // namespace headrace::engine
