#include "engine/request.h"

#include "capi/guard.h"
#include "capi/handles.h"
#include "engine/image_reader.h"
#include "engine/input_reader.h"
#include "engine/speech_tokens.h"
#include "schedule/tenant.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

void append(std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens) {
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
}

Result<const text::Tokenizer*> tokenizer_of(const headrace_request& request) {
  const text::Tokenizer* tokenizer = request.loaded->engine->tokenizer.get();
  if (tokenizer == nullptr)
    return not_found("tokenizer", "the model's files hold no tokenizer; add tokens instead of text");
  return tokenizer;
}

// More than any encoder takes; keeps sizes within 64 bits.
constexpr uint32_t kMaxImageSide = 1 << 20;

Result<const engine::ImageReader*> images_of(const LoadedModel& loaded) {
  const engine::ImageReader* reader = loaded.engine->executor->images();
  if (reader == nullptr) return unsupported("image", "the model reads none");
  return reader;
}

Result<const engine::InputReader*> inputs_of(const headrace_request& request, const char* place) {
  const engine::InputReader* reader = request.loaded->engine->executor->inputs();
  if (reader == nullptr) return unsupported(place, "no encoder stands in front of the model's decoder");
  return reader;
}

}  // namespace

Result<std::shared_ptr<const engine::RequestImage>> headrace::capi::read_rgb(const LoadedModel& loaded,
                                                                             const uint8_t* rgb, size_t rgb_size,
                                                                             uint32_t height, uint32_t width) {
  if (rgb == nullptr && rgb_size != 0) return null_argument("rgb");
  HEADRACE_ASSIGN_OR_RETURN(const engine::ImageReader* reader, images_of(loaded));
  if (height > kMaxImageSide || width > kMaxImageSide || rgb_size != size_t{3} * height * width) {
    return invalid_argument("image", "{} bytes are not 3 for each of {} x {} pixels", rgb_size, height, width);
  }
  const RgbImage image{static_cast<int32_t>(height), static_cast<int32_t>(width), {rgb, rgb + rgb_size}};
  return engine::make_request_image(*reader, image);
}

extern "C" {

headrace_status headrace_request_create(const headrace_model* model, headrace_request** request,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (request == nullptr) return null_argument("request");
    const Model& loaded = *model->loaded->model;
    engine::RequestParams params;
    // A set of all tokens would cost each one a pass over the vocabulary.
    const SpeechConfig* const speech = loaded.speech();
    if (speech != nullptr && !(speech->suppress.empty() && speech->suppress_first.empty())) {
      params.speech = std::make_shared<engine::SpeechTokens>(
          engine::suppress_tokens(speech->suppress, speech->suppress_first, loaded.spec().vocab_size));
    }
    *request = new headrace_request{model->loaded, std::move(params)};
    return Status();
  });
}

void headrace_request_destroy(headrace_request* request) { delete request; }

headrace_status headrace_request_add_text(headrace_request* request, const char* text, size_t text_size, uint32_t flags,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("text", text, text_size));
    HEADRACE_ASSIGN_OR_RETURN(const text::EncodeOptions options, encode_options(flags));
    HEADRACE_ASSIGN_OR_RETURN(const text::Tokenizer* tokenizer, tokenizer_of(*request));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer->encode(view, options));
    append(request->params.prompt, tokens);
    return Status();
  });
}

headrace_status headrace_request_add_tokens(headrace_request* request, const int32_t* tokens, size_t num_tokens,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_RETURN_IF_ERROR(
        check_tokens("tokens", tokens, num_tokens, request->loaded->engine->executor->vocab_size()));
    request->params.prompt.insert(request->params.prompt.end(), tokens, tokens + num_tokens);
    return Status();
  });
}

headrace_status headrace_request_add_image_pixels(headrace_request* request, const float* pixels, size_t num_pixels,
                                                  uint32_t height, uint32_t width, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (pixels == nullptr && num_pixels != 0) return null_argument("pixels");
    HEADRACE_ASSIGN_OR_RETURN(const engine::ImageReader* reader, images_of(*request->loaded));
    HEADRACE_ASSIGN_OR_RETURN(auto image, engine::make_request_image(*reader, {pixels, num_pixels}, height, width));
    request->params.images.push_back(std::move(image));
    return Status();
  });
}

headrace_status headrace_request_add_image(headrace_request* request, const uint8_t* rgb, size_t rgb_size,
                                           uint32_t height, uint32_t width, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(auto made, read_rgb(*request->loaded, rgb, rgb_size, height, width));
    request->params.images.push_back(std::move(made));
    return Status();
  });
}

headrace_status headrace_request_set_encoder_tokens(headrace_request* request, const int32_t* tokens, size_t num_tokens,
                                                    headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (tokens == nullptr && num_tokens != 0) return null_argument("tokens");
    HEADRACE_ASSIGN_OR_RETURN(const engine::InputReader* reader, inputs_of(*request, "encoder_input"));
    HEADRACE_ASSIGN_OR_RETURN(request->params.encoder_input, engine::make_token_input(*reader, {tokens, num_tokens}));
    return Status();
  });
}

headrace_status headrace_request_set_encoder_text(headrace_request* request, const char* text, size_t text_size,
                                                  uint32_t flags, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("text", text, text_size));
    HEADRACE_ASSIGN_OR_RETURN(const text::EncodeOptions options, encode_options(flags));
    HEADRACE_ASSIGN_OR_RETURN(const engine::InputReader* reader, inputs_of(*request, "encoder_input"));
    HEADRACE_ASSIGN_OR_RETURN(const text::Tokenizer* tokenizer, tokenizer_of(*request));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer->encode(view, options));
    HEADRACE_ASSIGN_OR_RETURN(request->params.encoder_input, engine::make_token_input(*reader, tokens));
    return Status();
  });
}

headrace_status headrace_request_set_audio(headrace_request* request, const float* samples, size_t num_samples,
                                           uint32_t sample_rate, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (samples == nullptr && num_samples != 0) return null_argument("samples");
    HEADRACE_ASSIGN_OR_RETURN(const engine::InputReader* reader, inputs_of(*request, "audio"));
    HEADRACE_ASSIGN_OR_RETURN(request->params.encoder_input,
                              engine::make_audio_input(*reader, {samples, num_samples}, sample_rate));
    return Status();
  });
}

headrace_status headrace_request_set_audio_features(headrace_request* request, const float* features,
                                                    size_t num_features, uint32_t num_mels, uint32_t num_frames,
                                                    headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (features == nullptr && num_features != 0) return null_argument("features");
    HEADRACE_ASSIGN_OR_RETURN(const engine::InputReader* reader, inputs_of(*request, "audio"));
    HEADRACE_ASSIGN_OR_RETURN(
        request->params.encoder_input,
        engine::make_feature_input(*reader, {features, num_features}, int64_t{num_mels}, int64_t{num_frames}));
    return Status();
  });
}

headrace_status headrace_request_add_messages(headrace_request* request, const char* messages, size_t messages_size,
                                              const char* tools, size_t tools_size, const char* variables,
                                              size_t variables_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view messages_text, text_argument("messages", messages, messages_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view tools_text, text_argument("tools", tools, tools_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view variables_text,
                              text_argument("variables", variables, variables_size));
    HEADRACE_ASSIGN_OR_RETURN(const text::Tokenizer* tokenizer, tokenizer_of(*request));
    HEADRACE_ASSIGN_OR_RETURN(const auto chat_template, request->loaded->model->chat_template());
    HEADRACE_ASSIGN_OR_RETURN(const text::RenderedPrompt rendered,
                              render_chat(*chat_template, messages_text, tools_text, variables_text,
                                          /*add_generation_prompt=*/true, /*now_unix_seconds=*/-1));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, encode_rendered(*tokenizer, rendered));
    append(request->params.prompt, tokens);
    return Status();
  });
}

headrace_status headrace_request_add_prompt(headrace_request* request, const headrace_prompt* prompt,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (prompt == nullptr) return null_argument("prompt");
    HEADRACE_ASSIGN_OR_RETURN(const text::Tokenizer* tokenizer, tokenizer_of(*request));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, encode_rendered(*tokenizer, prompt->rendered));
    append(request->params.prompt, tokens);
    return Status();
  });
}

headrace_status headrace_request_set_session(headrace_request* request, headrace_session* session,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (session == nullptr) return null_argument("session");
    if (session->loaded != request->loaded) return failed_precondition("session", "belongs to another model");
    request->params.session = session->session;
    return Status();
  });
}

void headrace_sampling_init(headrace_sampling* sampling) {
  if (sampling == nullptr) return;
  *sampling = headrace_sampling{};
  sampling->struct_size = sizeof *sampling;
  sampling->top_p = 1.0f;
  sampling->typical_p = 1.0f;
  sampling->repetition_penalty = 1.0f;
  sampling->n = 1;
  sampling->num_logprobs = -1;
  sampling->num_prompt_logprobs = -1;
}

headrace_status headrace_request_set_sampling(headrace_request* request, const headrace_sampling* sampling,
                                              headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const headrace_sampling given, read_struct("sampling", sampling, kSamplingSize1));
    if (given.reserved != 0) return invalid_argument("sampling.reserved", "must be 0");
    HEADRACE_ASSIGN_OR_RETURN(const bool has_seed, flag_argument("has_seed", given.has_seed));
    engine::RequestParams changed = request->params;
    changed.sampling.temperature = given.temperature;
    changed.sampling.top_k = given.top_k;
    changed.sampling.top_p = given.top_p;
    changed.sampling.min_p = given.min_p;
    changed.sampling.typical_p = given.typical_p;
    changed.sampling.repetition_penalty = given.repetition_penalty;
    changed.sampling.frequency_penalty = given.frequency_penalty;
    changed.sampling.presence_penalty = given.presence_penalty;
    changed.sampling.seed = given.seed;
    changed.has_seed = has_seed;
    changed.n = given.n;
    changed.num_logprobs = given.num_logprobs;
    changed.num_prompt_logprobs = given.num_prompt_logprobs;
    HEADRACE_RETURN_IF_ERROR(changed.validate(request->loaded->engine->executor->vocab_size()));
    request->params = std::move(changed);
    return Status();
  });
}

headrace_status headrace_request_add_logit_bias(headrace_request* request, int32_t token_id, float bias,
                                                headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    engine::RequestParams changed = request->params;
    changed.sampling.logit_bias.emplace_back(token_id, bias);
    HEADRACE_RETURN_IF_ERROR(changed.validate(request->loaded->engine->executor->vocab_size()));
    request->params = std::move(changed);
    return Status();
  });
}

headrace_status headrace_request_add_stop_string(headrace_request* request, const char* text, size_t text_size,
                                                 headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("text", text, text_size));
    if (view.empty()) return invalid_argument("stop_strings", "an empty stop string would stop everywhere");
    request->params.stop_strings.emplace_back(view);
    return Status();
  });
}

headrace_status headrace_request_add_stop_token(headrace_request* request, int32_t token_id, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    const int32_t vocab_size = request->loaded->engine->executor->vocab_size();
    if (token_id < 0 || token_id >= vocab_size) {
      return invalid_argument("stop_tokens", "{} is outside the vocabulary of {}", token_id, vocab_size);
    }
    request->params.stop_tokens.push_back(token_id);
    return Status();
  });
}

headrace_status headrace_request_set_length(headrace_request* request, int64_t min_tokens, int64_t max_tokens,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (min_tokens < 0) return invalid_argument("min_tokens", "{} is negative", min_tokens);
    if (max_tokens < 0) return invalid_argument("max_tokens", "{} is negative", max_tokens);
    if (max_tokens > 0 && min_tokens > max_tokens) {
      return invalid_argument("min_tokens", "{} is more than max_tokens, {}", min_tokens, max_tokens);
    }
    request->params.min_tokens = min_tokens;
    request->params.max_tokens = max_tokens;
    return Status();
  });
}

headrace_status headrace_request_set_ignore_eos(headrace_request* request, int32_t ignore_eos, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(request->params.ignore_eos, flag_argument("ignore_eos", ignore_eos));
    return Status();
  });
}

headrace_status headrace_request_set_deadline(headrace_request* request, int64_t milliseconds, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (milliseconds < 0) return invalid_argument("deadline", "{} is negative", milliseconds);
    request->params.deadline_ms = milliseconds;
    return Status();
  });
}

headrace_status headrace_request_set_priority(headrace_request* request, int32_t priority, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    request->params.priority = priority;
    return Status();
  });
}

headrace_status headrace_request_set_adapter(headrace_request* request, const headrace_adapter* adapter,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (adapter != nullptr && adapter->loaded != request->loaded) {
      return failed_precondition("adapter", "belongs to another model");
    }
    request->params.adapter = adapter == nullptr ? nullptr : adapter->adapter;
    return Status();
  });
}

headrace_status headrace_request_set_hidden_states(headrace_request* request, const int32_t* layers, size_t num_layers,
                                                   int64_t begin, int64_t end, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    if (layers == nullptr && num_layers != 0) return null_argument("layers");
    engine::HiddenStatesParams asked{{layers, layers + num_layers}, begin, end};
    if (num_layers > 0) {
      HEADRACE_RETURN_IF_ERROR(request->loaded->engine->executor->check_hidden_layers(asked.layers));
      if (begin < 0) return invalid_argument("begin", "{} is negative", begin);
      if (end <= begin) return invalid_argument("end", "{} is not behind begin, {}", end, begin);
    }
    request->params.hidden_states = std::move(asked);
    return Status();
  });
}

headrace_status headrace_request_set_tenant(headrace_request* request, const char* tenant, size_t tenant_size,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view name, text_argument("tenant", tenant, tenant_size));
    HEADRACE_RETURN_IF_ERROR(schedule::check_tenant_name(name));
    request->params.tenant = std::string(name);
    return Status();
  });
}

headrace_status headrace_request_set_progress(headrace_request* request, int32_t progress, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(request->params.reports_progress, flag_argument("progress", progress));
    return Status();
  });
}

headrace_status headrace_request_set_zero_retention(headrace_request* request, int32_t zero_retention,
                                                    headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(request->params.zero_retention, flag_argument("zero_retention", zero_retention));
    return Status();
  });
}

headrace_status headrace_request_set_cache_salt(headrace_request* request, const char* salt, size_t salt_size,
                                                headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return null_argument("request");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("salt", salt, salt_size));
    request->params.cache_salt = std::string(view);
    return Status();
  });
}

}  // extern "C"
