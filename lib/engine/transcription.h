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
#include "engine/earlier_text.h"
#include "engine/event.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/speech_prompt.h"
#include "engine/window_judgement.h"
#include "media/log_mel.h"
#include "model/speech_config.h"

namespace headrace::engine {

struct TranscriptionParams {
  RequestParams request;        // sampling and the like of every window; no prompt and no encoder's input
  std::string language, task;   // "en", "transcribe"; empty: the model's own, and a language is found out
  bool times = true;            // segments with times; without, one for each window
  std::vector<int32_t> prompt;  // the decoder's first tokens, in place of language and task; empty: none
  // Of a window the first, and the next where what was written is rejected, but the last stands; empty: the request's.
  std::vector<float> temperatures;
  WindowThresholds thresholds;
  EarlierTextParams earlier;
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
  // where its files do not say which tokens are times or silence; kInvalidArgument ("language", "task") for those it has not,
  // ("temperatures[i]") for one that is negative or not finite, ("prompt_ids") for more than the context has room for,
  // ("audio") as make_audio_input has it, but for the length; as `thresholds` and `earlier` have it; the reason where the files
  // do not say how audio is read.
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
  Status start_judgement();
  Status start_earlier_text();
  Status read_audio(std::span<const float> samples, uint32_t sample_rate);
  Result<std::shared_ptr<const EncoderInput>> window() const;
  int64_t window_frames() const;
  int32_t first_time() const;
  float temperature() const;
  void finish_language();
  void finish_window();
  void finish_silence();
  void conclude(WindowVerdict verdict, std::vector<int32_t> tokens);
  void write_segments(std::vector<int32_t> tokens);
  void go_on(int64_t num_frames);

  const std::shared_ptr<const EngineModel> model_;
  const SpeechConfig config_;
  const TranscriptionParams params_;
  SpeechPrompt prompt_;  // of each window
  // What may come of requests for the language, for the likelihood of silence, and for a window; null: all.
  std::shared_ptr<const SpeechTokens> languages_, silence_, written_;
  EarlierText earlier_;
  LogMelSpec spectrogram_;
  std::vector<float> features_;                   // [num_mels, computed_frames_] of all the audio
  int64_t computed_frames_ = 0, num_frames_ = 0;  // num_frames_: of audio, without the silence behind it
  int64_t seek_ = 0;                              // frame that the next window begins with
  size_t attempt_ = 0;                            // index of the window's temperature
  std::vector<int32_t> tokens_;                   // of the request that runs, so far
  std::vector<float> logprobs_;                   // of those, where asked for
  std::optional<std::vector<int32_t>> unlikely_;  // a window's, until it is known how likely silence is
  std::optional<float> no_speech_;                // that, of this window
  std::deque<SpeechSegment> segments_;
};

}  // namespace headrace::engine
