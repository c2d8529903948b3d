#include "engine/transcription.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/input_reader.h"
#include "engine/speech_segments.h"
#include "engine/speech_tokens.h"
#include "model/model.h"

namespace headrace::engine {

namespace {

// The likeliest of these.
void ask_for_one_token(RequestParams& request, std::shared_ptr<const SpeechTokens> of) {
  request.sampling = RequestParams().sampling;
  request.token_mask = nullptr;
  request.stop_strings.clear();
  request.min_tokens = 0;
  request.max_tokens = 1;
  request.speech = std::move(of);
}

}  // namespace

Result<std::unique_ptr<Transcription>> Transcription::create(std::shared_ptr<const EngineModel> model,
                                                             std::span<const float> samples, uint32_t sample_rate,
                                                             TranscriptionParams params) {
  const SpeechConfig* config = model->model ? model->model->speech() : nullptr;
  if (config == nullptr) return unsupported("model", "it writes down no speech");
  std::unique_ptr<Transcription> made(new Transcription(std::move(model), *config, std::move(params)));
  HEADRACE_RETURN_IF_ERROR(made->start());
  HEADRACE_RETURN_IF_ERROR(made->read_audio(samples, sample_rate));
  return made;
}

Transcription::Transcription(std::shared_ptr<const EngineModel> model, const SpeechConfig& config,
                             TranscriptionParams params)
    : model_(std::move(model)), config_(config), params_(std::move(params)) {}

// What the decoder begins with, and what it may write.
Status Transcription::start() {
  const int32_t vocab_size = model_->executor->vocab_size();
  if (params_.times && !config_.no_times) {
    return unsupported("no_timestamps_token_id", "the model's files do not say which tokens are times");
  }
  if (params_.prompt.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(prompt_, make_speech_prompt(config_, params_.language, params_.task, params_.times));
  } else {
    prompt_.tokens = params_.prompt;
  }
  HEADRACE_RETURN_IF_ERROR(start_judgement());
  HEADRACE_RETURN_IF_ERROR(start_earlier_text());
  std::vector<int32_t> languages;
  for (const auto& [name, id] : config_.languages) languages.push_back(id);
  languages_ = std::make_shared<SpeechTokens>(only_tokens(languages, vocab_size));
  if (!params_.times && config_.suppress.empty() && config_.suppress_first.empty()) return {};
  SpeechTokens written = suppress_tokens(config_.suppress, config_.suppress_first, vocab_size);
  if (params_.times) {
    TimeTokens& times = written.times.emplace();
    times.zero = first_time();
    times.end_of_text = config_.end;
    if (config_.last_initial && *config_.last_initial < vocab_size) {
      times.last_initial = times.zero + *config_.last_initial;
    }
  }
  written_ = std::make_shared<SpeechTokens>(std::move(written));
  return {};
}

Status Transcription::start_judgement() {
  for (size_t i = 0; i < params_.temperatures.size(); ++i) {
    const float temperature = params_.temperatures[i];
    if (temperature >= 0 && std::isfinite(temperature)) continue;
    return invalid_argument(fmt::format("temperatures[{}]", i), "{} is not a finite number of at least 0", temperature);
  }
  HEADRACE_RETURN_IF_ERROR(params_.thresholds.validate());
  if (!params_.thresholds.no_speech) return {};
  if (!config_.no_times || *config_.no_times == 0) {
    return unsupported("no_timestamps_token_id", "the model's files do not say which token is silence");
  }
  const int32_t silence[] = {*config_.no_times - 1};
  silence_ = std::make_shared<SpeechTokens>(only_tokens(silence, model_->executor->vocab_size()));
  return {};
}

Status Transcription::start_earlier_text() {
  HEADRACE_RETURN_IF_ERROR(params_.earlier.validate());
  const int64_t context = model_->executor->max_context();
  earlier_ = EarlierText(params_.earlier, config_.previous, first_time(), context / 2 - 1);
  const int64_t own = std::ssize(prompt_.tokens) + (prompt_.lacks_language ? 1 : 0);
  if (!params_.earlier.prompt_ids.empty() && earlier_.max_size() + own >= context) {
    return invalid_argument("prompt_ids", "{} tokens leave nothing of a context of {}",
                            params_.earlier.prompt_ids.size(), context);
  }
  return {};
}

// All of it is one spectrogram, whose loudest place the rest is measured against. What is shorter than a window is followed by
// silence, as the feature extractor does by default.
Status Transcription::read_audio(std::span<const float> samples, uint32_t sample_rate) {
  const InputReader* reader = model_->executor->inputs();
  if (reader == nullptr || !reader->encoder().audio) return unsupported("model", "it writes down no speech");
  HEADRACE_RETURN_IF_ERROR(reader->audio_processor().status());
  spectrogram_ = *reader->audio_processor();
  HEADRACE_RETURN_IF_ERROR(check_samples(spectrogram_, samples, sample_rate));
  LogMelSpec spec = spectrogram_;
  spec.num_samples = std::max(spec.num_samples, std::ssize(samples));
  HEADRACE_ASSIGN_OR_RETURN(features_, log_mel(spec, samples));
  computed_frames_ = spec.num_frames();
  num_frames_ = std::min(computed_frames_, (std::ssize(samples) + spec.hop_length - 1) / spec.hop_length);
  return {};
}

int64_t Transcription::window_frames() const { return std::min(spectrogram_.num_frames(), num_frames_ - seek_); }
// Beyond all tokens where none is a time.
int32_t Transcription::first_time() const {
  return params_.times ? *config_.no_times + 1 : model_->executor->vocab_size();
}

// Zeros behind the last frame.
Result<std::shared_ptr<const EncoderInput>> Transcription::window() const {
  const int64_t mels = spectrogram_.num_mels, frames = spectrogram_.num_frames();
  const int64_t given = std::min(frames, computed_frames_ - seek_);
  std::vector<float> rows(static_cast<size_t>(mels * frames), 0.0f);
  for (int64_t mel = 0; mel < mels; ++mel) {
    std::copy_n(features_.begin() + mel * computed_frames_ + seek_, given, rows.begin() + mel * frames);
  }
  return make_feature_input(*model_->executor->inputs(), rows, mels, frames);
}

float Transcription::temperature() const {
  return params_.temperatures.empty() ? params_.request.sampling.temperature : params_.temperatures[attempt_];
}

Result<std::optional<RequestParams>> Transcription::next() const {
  if (seek_ >= num_frames_) return std::optional<RequestParams>();
  RequestParams out = params_.request;
  out.n = 1;
  HEADRACE_ASSIGN_OR_RETURN(out.encoder_input, window());
  if (prompt_.lacks_language) {
    out.prompt = {config_.start};
    ask_for_one_token(out, languages_);
    return std::optional(std::move(out));
  }
  out.prompt = earlier_.tokens();
  if (unlikely_) {
    // Silence is what may follow the first token that is the window's own.
    out.prompt.push_back(prompt_.tokens.front());
    out.num_logprobs = std::max(out.num_logprobs, 0);
    ask_for_one_token(out, silence_);
    return std::optional(std::move(out));
  }
  out.prompt.insert(out.prompt.end(), prompt_.tokens.begin(), prompt_.tokens.end());
  out.speech = written_;
  out.sampling.temperature = temperature();
  if (params_.thresholds.logprob) {
    out.num_logprobs = std::max(out.num_logprobs, 0);
    out.sampling.processed_logprobs = true;
  }
  return std::optional(std::move(out));
}

Status Transcription::take(const Event& event) {
  if (seek_ >= num_frames_) return failed_precondition("event", "all is written");
  if (event.type == EventType::kTokens) {
    tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
    logprobs_.insert(logprobs_.end(), event.logprobs.begin(), event.logprobs.end());
  }
  if (!event.is_last) return {};
  const bool whole = event.finish_reason == FinishReason::kStop || event.finish_reason == FinishReason::kLength;
  if (event.type == EventType::kFinished && whole) {
    if (prompt_.lacks_language) {
      finish_language();
    } else if (unlikely_) {
      finish_silence();
    } else {
      finish_window();
    }
  }
  tokens_.clear();
  logprobs_.clear();
  return {};
}

void Transcription::finish_language() {
  const auto found = std::ranges::find(config_.languages, tokens_.at(0), &NamedToken::second);
  prompt_.tokens.insert(prompt_.tokens.begin() + 1, found->second);
  prompt_.language = found->first;
  prompt_.lacks_language = false;
}

void Transcription::finish_window() {
  const WindowVerdict verdict = judge_window(params_.thresholds, tokens_, logprobs_, model_->executor->vocab_size());
  if (verdict == WindowVerdict::kUnlikely && params_.thresholds.no_speech && !no_speech_) {
    unlikely_ = std::move(tokens_);
  } else {
    conclude(verdict, std::move(tokens_));
  }
}

void Transcription::finish_silence() {
  no_speech_ = std::exp(logprobs_.at(0));
  conclude(WindowVerdict::kUnlikely, *std::exchange(unlikely_, std::nullopt));
}

void Transcription::conclude(WindowVerdict verdict, std::vector<int32_t> tokens) {
  const bool is_silent =
      verdict == WindowVerdict::kUnlikely && no_speech_ && double{*no_speech_} > *params_.thresholds.no_speech;
  if (is_silent) return go_on(window_frames());
  if (verdict != WindowVerdict::kStands && attempt_ + 1 < params_.temperatures.size()) {
    ++attempt_;
    return;
  }
  write_segments(std::move(tokens));
}

void Transcription::go_on(int64_t num_frames) {
  earlier_.set_temperature(temperature());
  seek_ += num_frames;
  attempt_ = 0;
  no_speech_.reset();
}

void Transcription::write_segments(std::vector<int32_t> tokens) {
  const std::vector<int32_t>& ends = model_->end_of_generation_ids;
  if (!tokens.empty() && std::ranges::binary_search(ends, tokens.back())) tokens.pop_back();
  const double frame_seconds = static_cast<double>(spectrogram_.hop_length) / spectrogram_.sample_rate;
  const int32_t zero = first_time();
  CutWindow cut = cut_window(tokens, zero, window_frames());
  for (WindowSegment& segment : cut.segments) {
    SpeechSegment& out = segments_.emplace_back();
    out.start = static_cast<double>(seek_ + segment.start * kFramesPerStep) * frame_seconds;
    out.end = static_cast<double>(seek_ + segment.end * kFramesPerStep) * frame_seconds;
    if (model_->tokenizer) {
      std::vector<int32_t> words;
      std::ranges::copy_if(segment.tokens, std::back_inserter(words), [&](int32_t token) { return token < zero; });
      out.text = model_->tokenizer->decode(words, /*skip_special=*/true);
    }
    earlier_.add_segment(segment.tokens);
    out.tokens = std::move(segment.tokens);
  }
  go_on(cut.num_frames);
}

}  // namespace headrace::engine
