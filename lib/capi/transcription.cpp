#include "engine/transcription.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kParamsSize1 = offsetof(headrace_transcription_params, settings) + sizeof(void*);
constexpr size_t kSegmentSize1 = offsetof(headrace_speech_segment, num_tokens) + sizeof(size_t);

Result<std::optional<double>> read_threshold(const char* flag, uint32_t has, double value) {
  HEADRACE_ASSIGN_OR_RETURN(const bool holds, flag_argument(flag, has));
  return holds ? std::optional(value) : std::nullopt;
}

Status read_judgement(const headrace_transcription_params& params, engine::TranscriptionParams& out) {
  if (params.temperatures == nullptr && params.num_temperatures != 0) return null_argument("params.temperatures");
  out.temperatures.assign(params.temperatures, params.temperatures + params.num_temperatures);
  engine::WindowThresholds& thresholds = out.thresholds;
  HEADRACE_ASSIGN_OR_RETURN(thresholds.compression_ratio,
                            read_threshold("params.has_compression_ratio_threshold",
                                           params.has_compression_ratio_threshold, params.compression_ratio_threshold));
  HEADRACE_ASSIGN_OR_RETURN(thresholds.logprob, read_threshold("params.has_logprob_threshold",
                                                               params.has_logprob_threshold, params.logprob_threshold));
  HEADRACE_ASSIGN_OR_RETURN(
      thresholds.no_speech,
      read_threshold("params.has_no_speech_threshold", params.has_no_speech_threshold, params.no_speech_threshold));
  return {};
}

Status read_earlier_text(const headrace_transcription_params& params, int32_t vocab_size,
                         engine::EarlierTextParams& out) {
  HEADRACE_ASSIGN_OR_RETURN(out.condition_on_prev_tokens,
                            flag_argument("params.condition_on_prev_tokens", params.condition_on_prev_tokens));
  HEADRACE_ASSIGN_OR_RETURN(out.prompt_in_all,
                            flag_argument("params.prompt_condition_type", params.prompt_condition_type));
  HEADRACE_RETURN_IF_ERROR(check_tokens("params.prompt_ids", params.prompt_ids, params.num_prompt_ids, vocab_size));
  out.prompt_ids.assign(params.prompt_ids, params.prompt_ids + params.num_prompt_ids);
  return {};
}

Result<engine::TranscriptionParams> read_params(const LoadedModel& loaded, const headrace_transcription_params* given) {
  engine::TranscriptionParams out;
  if (given == nullptr) return out;
  HEADRACE_ASSIGN_OR_RETURN(const headrace_transcription_params params, read_struct("params", given, kParamsSize1));
  HEADRACE_ASSIGN_OR_RETURN(const bool no_times, flag_argument("params.no_timestamps", params.no_timestamps));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view language,
                            text_argument("params.language", params.language, params.language_size));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view task, text_argument("params.task", params.task, params.task_size));
  out.times = !no_times;
  out.language = std::string(language);
  out.task = std::string(task);
  if (params.reserved != 0) return invalid_argument("params.reserved", "must be 0");
  const int32_t vocab_size = loaded.engine->executor->vocab_size();
  HEADRACE_RETURN_IF_ERROR(read_judgement(params, out));
  HEADRACE_RETURN_IF_ERROR(read_earlier_text(params, vocab_size, out.earlier));
  HEADRACE_RETURN_IF_ERROR(check_tokens("params.prompt", params.prompt, params.num_prompt_tokens, vocab_size));
  out.prompt.assign(params.prompt, params.prompt + params.num_prompt_tokens);
  if (params.settings == nullptr) return out;
  if (params.settings->loaded.get() != &loaded) {
    return failed_precondition("params.settings", "was made for another model");
  }
  out.request = params.settings->params;
  if (out.request.session || !out.request.prompt.empty() || out.request.encoder_input) {
    return invalid_argument("params.settings", "has a session, a prompt or an encoder's input");
  }
  if (out.request.n != 1)
    return invalid_argument("params.settings.n", "{} samples; there is one of each window", out.request.n);
  return out;
}

}  // namespace

extern "C" {

void headrace_transcription_params_init(headrace_transcription_params* params) { init_struct(params); }

headrace_status headrace_transcription_create(const headrace_model* model, const float* samples, size_t num_samples,
                                              uint32_t sample_rate, const headrace_transcription_params* params,
                                              headrace_transcription** transcription, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (samples == nullptr && num_samples != 0) return null_argument("samples");
    if (transcription == nullptr) return null_argument("transcription");
    HEADRACE_ASSIGN_OR_RETURN(engine::TranscriptionParams given, read_params(*model->loaded, params));
    HEADRACE_ASSIGN_OR_RETURN(auto made, engine::Transcription::create(model->loaded->engine, {samples, num_samples},
                                                                       sample_rate, std::move(given)));
    *transcription = new headrace_transcription{model->loaded, std::move(made)};
    return Status();
  });
}

void headrace_transcription_destroy(headrace_transcription* transcription) { delete transcription; }

headrace_status headrace_transcription_next(const headrace_transcription* transcription, headrace_request** request,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (transcription == nullptr) return null_argument("transcription");
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(std::optional<engine::RequestParams> params, transcription->transcription->next());
    *request = params ? new headrace_request{transcription->loaded, std::move(*params)} : nullptr;
    return Status();
  });
}

headrace_status headrace_transcription_take(headrace_transcription* transcription, const headrace_event* event,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (transcription == nullptr) return null_argument("transcription");
    if (event == nullptr) return null_argument("event");
    return transcription->transcription->take(*event->event);
  });
}

const char* headrace_transcription_get_language(const headrace_transcription* transcription) {
  return transcription == nullptr ? "" : transcription->transcription->language().c_str();
}

size_t headrace_transcription_get_num_segments(const headrace_transcription* transcription) {
  return transcription == nullptr ? 0 : transcription->transcription->segments().size();
}

void headrace_speech_segment_init(headrace_speech_segment* segment) { init_struct(segment); }

headrace_status headrace_transcription_get_segment(const headrace_transcription* transcription, size_t index,
                                                   headrace_speech_segment* segment, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (transcription == nullptr) return null_argument("transcription");
    const auto& segments = transcription->transcription->segments();
    if (index >= segments.size()) return not_found("index", "there are {} segments so far", segments.size());
    const engine::SpeechSegment& found = segments[index];
    headrace_speech_segment values = {};
    values.start = found.start;
    values.end = found.end;
    values.text = found.text.c_str();
    values.text_size = found.text.size();
    values.tokens = found.tokens.data();
    values.num_tokens = found.tokens.size();
    return write_struct("segment", values, segment, kSegmentSize1);
  });
}

}  // extern "C"
