// What is said in audio of any length: windows of what the model reads at once, each a request, the next beginning where the last
// whole segment ended. Reference: transformers' WhisperForConditionalGeneration.generate.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/event.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/speech_prompt.h"
#include "media/log_mel.h"
#include "model/speech_config.h"

namespace headrace::engine {

struct TranscriptionParams {
  RequestParams request;        // sampling and the like of every window; no prompt and no encoder's input
  std::string language, task;   // "en", "transcribe"; empty: the model's own, and a language is found out
  bool times = true;            // segments with times; without, one for each window
  std::vector<int32_t> prompt;  // the decoder's first tokens, in place of language and task; empty: none
};

struct SpeechSegment {
  double start = 0, end = 0;    // seconds
  std::string text;             // without control tokens and times; empty where the model has no tokenizer
  std::vector<int32_t> tokens;  // times among them
};

// Used by one thread at a time.
class Transcription {
 public:
  // samples: mono, in [-1, 1]. kUnsupported ("model") where the model writes down no speech, and ("no_timestamps_token_id")
  // where its files do not say which tokens are times; kInvalidArgument ("language", "task") for those it has not, ("audio") as
  // make_audio_input has it, but for the length; the reason where the files do not say how audio is read.
  static Result<std::unique_ptr<Transcription>> create(std::shared_ptr<const EngineModel> model,
                                                       std::span<const float> samples, uint32_t sample_rate,
                                                       TranscriptionParams params);

  // What is to be run next; null when all is written. The same again until its end was taken.
  Result<std::optional<RequestParams>> next() const;
  // An event of that request. One that fails or is cancelled leaves all as it was before it.
  Status take(const Event& event);

  // Found so far; they stay where they are.
  const std::deque<SpeechSegment>& segments() const { return segments_; }
  // "en"; empty where it is not known (yet).
  const std::string& language() const { return prompt_.language; }

 private:
  Transcription(std::shared_ptr<const EngineModel> model, const SpeechConfig& config, TranscriptionParams params);
  Status start();
  Status read_audio(std::span<const float> samples, uint32_t sample_rate);
  Result<std::shared_ptr<const EncoderInput>> window() const;
  int64_t window_frames() const;
  int32_t first_time() const;
  void finish_language();
  void finish_window();

  const std::shared_ptr<const EngineModel> model_;
  const SpeechConfig config_;
  const TranscriptionParams params_;
  SpeechPrompt prompt_;  // of each window
  std::shared_ptr<const SpeechTokens> languages_,
      written_;  // what may come of the language's request, and of a window's; null: all
  LogMelSpec spectrogram_;
  std::vector<float> features_;                   // [num_mels, computed_frames_] of all the audio
  int64_t computed_frames_ = 0, num_frames_ = 0;  // num_frames_: of audio, without the silence behind it
  int64_t seek_ = 0;                              // frame that the next window begins with
  std::vector<int32_t> tokens_;                   // of the request that runs, so far
  std::deque<SpeechSegment> segments_;
};

}  // namespace headrace::engine
