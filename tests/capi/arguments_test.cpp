// Every function of headrace.h with every pointer NULL at once, and with each handle NULL beside arguments that are good.
#include "capi/refused_argument.h"
#include "capi/tiny_model.h"

using namespace capi_test;

TEST_CASE("every function refuses NULL handles by name") {
  using E = headrace_error**;
  check_refused("needed", [](E e) { return headrace_system_describe(nullptr, 0, nullptr, e); });
  check_refused("options", [](E e) { return headrace_options_create(nullptr, e); });
  check_refused("options", [](E e) { return headrace_options_set(nullptr, nullptr, 0, nullptr, 0, e); });
  check_refused("options", [](E e) { return headrace_options_set_log(nullptr, nullptr, nullptr, e); });
  check_refused("needed", [](E e) { return headrace_options_get_info(0, nullptr, 0, nullptr, e); });
  check_refused("source", [](E e) { return headrace_source_open_path(nullptr, 0, nullptr, e); });
  check_refused("source", [](E e) { return headrace_source_open_descriptor(0, nullptr, nullptr, nullptr, e); });
  check_refused("source", [](E e) { return headrace_source_open_memory(nullptr, 0, nullptr, nullptr, nullptr, e); });
  check_refused("source", [](E e) { return headrace_source_open_reader(0, nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("model", [](E e) { return headrace_model_load(nullptr, 0, nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("model",
                [](E e) { return headrace_model_load_sources(nullptr, 0, nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("model", [](E e) { return headrace_model_get_info(nullptr, nullptr, e); });
  check_refused("model", [](E e) { return headrace_model_describe(nullptr, nullptr, 0, nullptr, e); });
  check_refused("model", [](E e) { return headrace_model_describe_profile(nullptr, nullptr, 0, nullptr, e); });
  check_refused("model", [](E e) { return headrace_model_describe_trace(nullptr, nullptr, 0, nullptr, e); });
  check_refused("model",
                [](E e) { return headrace_tuning_create(nullptr, 1, nullptr, 0, nullptr, nullptr, nullptr, e); });
  check_refused("tuning", [](E e) { return headrace_tuning_describe(nullptr, nullptr, 0, nullptr, e); });
  check_refused("model", [](E e) { return headrace_embedder_create(nullptr, nullptr, nullptr, e); });
  check_refused("embedder", [](E e) {
    return headrace_embedder_embed_tokens(nullptr, nullptr, nullptr, nullptr, 0, nullptr, 0, nullptr, e);
  });
  check_refused("embedder", [](E e) {
    return headrace_embedder_embed_texts(nullptr, nullptr, nullptr, 0, 0, nullptr, 0, nullptr, e);
  });
  check_refused("model", [](E e) { return headrace_model_get_sampling(nullptr, nullptr, e); });
  check_refused("path", [](E e) { return headrace_model_inspect(nullptr, 3, 0, nullptr, 0, nullptr, e); });
  check_refused("tokenizer", [](E e) { return headrace_tokenizer_load(nullptr, 0, nullptr, e); });
  check_refused("model", [](E e) { return headrace_tokenizer_open(nullptr, nullptr, e); });
  check_refused("tokenizer",
                [](E e) { return headrace_tokenizer_encode(nullptr, nullptr, 0, 0, nullptr, 0, nullptr, e); });
  check_refused("tokenizer",
                [](E e) { return headrace_tokenizer_decode(nullptr, nullptr, 0, 0, nullptr, 0, nullptr, e); });
  check_refused("tokenizer", [](E e) { return headrace_tokenizer_get_bytes(nullptr, 0, nullptr, 0, nullptr, e); });
  check_refused("tokenizer",
                [](E e) { return headrace_tokenizer_encode_prompt(nullptr, nullptr, nullptr, 0, nullptr, e); });
  check_refused("tokenizer", [](E e) { return headrace_detokenizer_create(nullptr, 0, nullptr, e); });
  check_refused("detokenizer", [](E e) { return headrace_detokenizer_push(nullptr, 0, nullptr, nullptr, e); });
  check_refused("detokenizer", [](E e) { return headrace_detokenizer_flush(nullptr, nullptr, nullptr, e); });
  check_refused("chat_template", [](E e) { return headrace_chat_template_create(nullptr, 0, nullptr, 0, nullptr, e); });
  check_refused("chat_template", [](E e) { return headrace_chat_template_load(nullptr, 0, nullptr, e); });
  check_refused("model", [](E e) { return headrace_chat_template_open(nullptr, nullptr, e); });
  check_refused("chat_template", [](E e) {
    return headrace_chat_template_render(nullptr, nullptr, 0, nullptr, 0, nullptr, 0, 0, 0, nullptr, e);
  });
  check_refused("prompt", [](E e) { return headrace_prompt_get_span(nullptr, 0, nullptr, nullptr, nullptr, e); });
  check_refused("model", [](E e) { return headrace_kv_cache_create(nullptr, nullptr, nullptr, e); });
  check_refused("kv_cache", [](E e) { return headrace_kv_cache_get_stats(nullptr, nullptr, e); });
  check_refused("kv_cache", [](E e) { return headrace_kv_cache_clear(nullptr, e); });
  check_refused("kv_cache", [](E e) { return headrace_kv_cache_flush(nullptr, e); });
  check_refused("model", [](E e) { return headrace_session_create(nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_append_tokens(nullptr, nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_append_text(nullptr, nullptr, 0, 0, e); });
  check_refused("session", [](E e) { return headrace_session_append_message(nullptr, nullptr, 0, nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_get_tokens(nullptr, nullptr, 0, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_evaluate(nullptr, nullptr, 0, nullptr, 0, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_fork(nullptr, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_rewind(nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_save(nullptr, nullptr, 0, e); });
  check_refused("model", [](E e) { return headrace_session_restore(nullptr, nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("model", [](E e) { return headrace_request_create(nullptr, nullptr, e); });
  check_refused("request", [](E e) { return headrace_request_add_text(nullptr, nullptr, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_tokens(nullptr, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_image(nullptr, nullptr, 0, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_image_pixels(nullptr, nullptr, 0, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_encoder_tokens(nullptr, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_encoder_text(nullptr, nullptr, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_audio(nullptr, nullptr, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_audio_features(nullptr, nullptr, 0, 0, 0, e); });
  check_refused("request",
                [](E e) { return headrace_request_add_messages(nullptr, nullptr, 0, nullptr, 0, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_prompt(nullptr, nullptr, e); });
  check_refused("request", [](E e) { return headrace_request_set_session(nullptr, nullptr, e); });
  check_refused("request", [](E e) { return headrace_request_set_sampling(nullptr, nullptr, e); });
  check_refused("request", [](E e) { return headrace_request_add_logit_bias(nullptr, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_stop_string(nullptr, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_add_stop_token(nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_length(nullptr, 0, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_ignore_eos(nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_deadline(nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_priority(nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_cache_salt(nullptr, nullptr, 0, e); });
  check_refused("model", [](E e) { return headrace_scheduler_create(nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_submit(nullptr, nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_cancel(nullptr, 0, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_step(nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_get_stats(nullptr, nullptr, e); });
  check_refused("runtime", [](E e) { return headrace_runtime_create(nullptr, nullptr, e); });
  check_refused("runtime", [](E e) { return headrace_runtime_get_stats(nullptr, nullptr, e); });
  check_refused("options", [](E e) { return headrace_options_set_runtime(nullptr, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_set_pinned(nullptr, 1, e); });
  check_refused("session", [](E e) { return headrace_session_set_message(nullptr, 0, nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_truncate_messages(nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_set_overflow(nullptr, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_get_dropped(nullptr, nullptr, e); });
  check_refused("summary", [](E e) { return headrace_summary_set(nullptr, nullptr, 0, e); });
  check_refused("scheduler",
                [](E e) { return headrace_scheduler_set_event_callback(nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_run(nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_stop(nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_set_cache_salt(nullptr, nullptr, 0, e); });
  check_refused("session", [](E e) { return headrace_session_add_image(nullptr, nullptr, 0, 0, 0, e); });
  check_refused("session", [](E e) { return headrace_session_append_parts(nullptr, nullptr, 0, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_progress(nullptr, 1, e); });
  check_refused("event", [](E e) { return headrace_event_get_progress(nullptr, nullptr, e); });
  check_refused("session", [](E e) { return headrace_session_park(nullptr, nullptr, 0, e); });
  check_refused("request", [](E e) { return headrace_request_set_zero_retention(nullptr, 1, e); });
  check_refused("request", [](E e) { return headrace_request_set_tenant(nullptr, nullptr, 0, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_set_tenant(nullptr, nullptr, 0, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_get_metrics(nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_get_latency(nullptr, 1, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_scheduler_get_tenants(nullptr, nullptr, 0, nullptr, e); });
  check_refused("scheduler",
                [](E e) { return headrace_scheduler_get_tenant_metrics(nullptr, nullptr, 0, nullptr, e); });
  check_refused("scheduler",
                [](E e) { return headrace_scheduler_get_tenant_latency(nullptr, nullptr, 0, 1, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_event_next(nullptr, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_event_next_of(nullptr, 1, nullptr, e); });
  check_refused("scheduler", [](E e) { return headrace_event_wait(nullptr, 1, nullptr, e); });
  check_refused("event", [](E e) { return headrace_event_get_top_logprobs(nullptr, 0, nullptr, nullptr, nullptr, e); });
  check_refused("event", [](E e) { return headrace_event_get_usage(nullptr, nullptr, e); });
  check_refused("model",
                [](E e) { return headrace_transcription_create(nullptr, nullptr, 0, 0, nullptr, nullptr, e); });
  check_refused("transcription", [](E e) { return headrace_transcription_next(nullptr, nullptr, e); });
  check_refused("transcription", [](E e) { return headrace_transcription_take(nullptr, nullptr, e); });
  check_refused("transcription", [](E e) { return headrace_transcription_get_segment(nullptr, 0, nullptr, e); });
}

TEST_CASE("good handles with NULL outputs or inputs are refused by the argument's name") {
  using E = headrace_error**;
  const headrace::Model owner = text_model();
  headrace_model* model = owner.get();
  const headrace::Tokenizer tokenizer = owner.tokenizer();
  const headrace::Session session(owner);
  const headrace::Request request(owner);
  const headrace::Scheduler scheduler(owner);
  const headrace::Embedder embedder(owner, headrace::Options().set("embedder.pooling", "last"));
  headrace_scheduler* handle = nullptr;
  REQUIRE(headrace_scheduler_create(model, nullptr, nullptr, &handle, nullptr) == HEADRACE_OK);
  check_refused("read", [](E e) {
    headrace_source* source = nullptr;
    return headrace_source_open_reader(1, nullptr, nullptr, nullptr, &source, e);
  });
  check_refused("data", [](E e) {
    headrace_source* source = nullptr;
    return headrace_source_open_memory(nullptr, 1, nullptr, nullptr, &source, e);
  });
  check_refused("info", [&](E e) { return headrace_model_get_info(model, nullptr, e); });
  check_refused("sampling", [&](E e) { return headrace_model_get_sampling(model, nullptr, e); });
  check_refused("tokenizer", [&](E e) { return headrace_tokenizer_open(model, nullptr, e); });
  check_refused("text", [&](E e) {
    size_t needed = 0;
    return headrace_tokenizer_encode(tokenizer.get(), nullptr, 1, 0, nullptr, 0, &needed, e);
  });
  check_refused("needed",
                [&](E e) { return headrace_tokenizer_encode(tokenizer.get(), "a", 1, 0, nullptr, 0, nullptr, e); });
  check_refused("tokens", [&](E e) {
    size_t needed = 0;
    return headrace_tokenizer_decode(tokenizer.get(), nullptr, 1, 0, nullptr, 0, &needed, e);
  });
  check_refused("detokenizer", [&](E e) { return headrace_detokenizer_create(tokenizer.get(), 0, nullptr, e); });
  check_refused("chat_template", [&](E e) { return headrace_chat_template_open(model, nullptr, e); });
  check_refused("kv_cache", [&](E e) { return headrace_kv_cache_create(model, nullptr, nullptr, e); });
  check_refused("session", [&](E e) { return headrace_session_create(model, nullptr, nullptr, nullptr, e); });
  check_refused("embedder", [&](E e) { return headrace_embedder_create(model, nullptr, nullptr, e); });
  const size_t starts[] = {0, 1};
  const int32_t token = 5;
  const char* const texts[] = {nullptr};
  size_t needed = 0;
  check_refused("sequence_starts", [&](E e) {
    return headrace_embedder_embed_tokens(embedder.get(), &token, nullptr, nullptr, 1, nullptr, 0, &needed, e);
  });
  check_refused("tokens", [&](E e) {
    return headrace_embedder_embed_tokens(embedder.get(), nullptr, nullptr, starts, 1, nullptr, 0, &needed, e);
  });
  check_refused("needed", [&](E e) {
    return headrace_embedder_embed_tokens(embedder.get(), &token, nullptr, starts, 1, nullptr, 0, nullptr, e);
  });
  check_refused("rows", [&](E e) {
    return headrace_embedder_embed_tokens(embedder.get(), &token, nullptr, starts, 1, nullptr, 64, &needed, e);
  });
  check_refused("texts", [&](E e) {
    return headrace_embedder_embed_texts(embedder.get(), nullptr, starts, 1, 0, nullptr, 0, &needed, e);
  });
  check_refused("text_sizes", [&](E e) {
    return headrace_embedder_embed_texts(embedder.get(), texts, nullptr, 1, 0, nullptr, 0, &needed, e);
  });
  check_refused("texts[0]", [&](E e) {
    return headrace_embedder_embed_texts(embedder.get(), texts, starts + 1, 1, 0, nullptr, 0, &needed, e);
  });
  check_refused("tokens", [&](E e) { return headrace_session_append_tokens(session.get(), nullptr, 1, e); });
  check_refused("salt", [&](E e) { return headrace_session_set_cache_salt(session.get(), nullptr, 1, e); });
  check_refused("forked", [&](E e) { return headrace_session_fork(session.get(), nullptr, e); });
  check_refused("needed", [&](E e) { return headrace_session_get_tokens(session.get(), nullptr, 0, nullptr, e); });
  check_refused("source", [&](E e) { return headrace_session_restore(model, nullptr, nullptr, nullptr, nullptr, e); });
  check_refused("request", [&](E e) { return headrace_request_create(model, nullptr, e); });
  check_refused("tokens", [&](E e) { return headrace_request_add_tokens(request.get(), nullptr, 1, e); });
  check_refused("rgb", [&](E e) { return headrace_request_add_image(request.get(), nullptr, 1, 1, 1, e); });
  check_refused("pixels", [&](E e) { return headrace_request_add_image_pixels(request.get(), nullptr, 1, 1, 1, e); });
  check_refused("tokens", [&](E e) { return headrace_request_set_encoder_tokens(request.get(), nullptr, 1, e); });
  check_refused("text", [&](E e) { return headrace_request_set_encoder_text(request.get(), nullptr, 1, 0, e); });
  check_refused("samples", [&](E e) { return headrace_request_set_audio(request.get(), nullptr, 1, 16000, e); });
  check_refused("features",
                [&](E e) { return headrace_request_set_audio_features(request.get(), nullptr, 1, 1, 1, e); });
  check_refused("messages", [&](E e) {
    return headrace_request_add_messages(request.get(), nullptr, 1, nullptr, 0, nullptr, 0, e);
  });
  check_refused("prompt", [&](E e) { return headrace_request_add_prompt(request.get(), nullptr, e); });
  check_refused("session", [&](E e) { return headrace_request_set_session(request.get(), nullptr, e); });
  check_refused("sampling", [&](E e) { return headrace_request_set_sampling(request.get(), nullptr, e); });
  check_refused("scheduler", [&](E e) { return headrace_scheduler_create(model, nullptr, nullptr, nullptr, e); });
  check_refused("request", [&](E e) { return headrace_scheduler_submit(handle, nullptr, nullptr, e); });
  check_refused("request_id", [&](E e) { return headrace_scheduler_submit(handle, request.get(), nullptr, e); });
  check_refused("has_work", [&](E e) { return headrace_scheduler_step(handle, nullptr, e); });
  check_refused("stats", [&](E e) { return headrace_scheduler_get_stats(handle, nullptr, e); });
  check_refused("metrics", [&](E e) { return headrace_scheduler_get_metrics(handle, nullptr, e); });
  check_refused("latency", [&](E e) { return headrace_scheduler_get_latency(handle, 1, nullptr, e); });
  check_refused("limits", [&](E e) { return headrace_scheduler_set_tenant(handle, nullptr, 0, nullptr, e); });
  check_refused("tenant", [&](E e) { return headrace_scheduler_set_tenant(handle, nullptr, 1, nullptr, e); });
  check_refused("tenant", [&](E e) { return headrace_request_set_tenant(request.get(), nullptr, 1, e); });
  check_refused("needed", [&](E e) { return headrace_scheduler_get_tenants(handle, nullptr, 0, nullptr, e); });
  check_refused("event", [&](E e) { return headrace_event_next(handle, nullptr, e); });
  check_refused("event", [&](E e) { return headrace_event_next_of(handle, 1, nullptr, e); });
  check_refused("event", [&](E e) { return headrace_event_wait(handle, 1, nullptr, e); });
  headrace_scheduler_destroy(handle);
}

TEST_CASE("truth values are 0 or 1, and paths are not empty") {
  using E = headrace_error**;
  const headrace::Model owner = text_model();
  const headrace::Request request(owner);
  headrace_chat_template* chat_template = nullptr;
  REQUIRE(headrace_chat_template_open(owner.get(), &chat_template, nullptr) == HEADRACE_OK);
  const std::string messages = R"([{"role":"user","content":"a"}])";
  for (const int32_t value : {7, 2, -1}) {
    check_refused("progress", [&](E e) { return headrace_request_set_progress(request.get(), value, e); });
    check_refused("ignore_eos", [&](E e) { return headrace_request_set_ignore_eos(request.get(), value, e); });
    check_refused("add_generation_prompt", [&](E e) {
      headrace_prompt* prompt = nullptr;
      return headrace_chat_template_render(chat_template, messages.data(), messages.size(), nullptr, 0, nullptr, 0,
                                           value, 0, &prompt, e);
    });
  }
  headrace_chat_template_destroy(chat_template);
  CHECK(headrace_request_set_ignore_eos(request.get(), 1, nullptr) == HEADRACE_OK);
  for (const char* path : {static_cast<const char*>(nullptr), ""}) {
    check_refused("path", [&](E e) {
      headrace_source* source = nullptr;
      return headrace_source_open_path(path, 0, &source, e);
    });
    check_refused("path", [&](E e) {
      headrace_tokenizer* tokenizer = nullptr;
      return headrace_tokenizer_load(path, 0, &tokenizer, e);
    });
    check_refused("path", [&](E e) {
      headrace_chat_template* loaded = nullptr;
      return headrace_chat_template_load(path, 0, &loaded, e);
    });
    check_refused("path", [&](E e) {
      size_t needed = 0;
      return headrace_model_inspect(path, 0, 0, nullptr, 0, &needed, e);
    });
  }
}

TEST_CASE("getters, inits and destroyers take NULL") {
  CHECK(headrace_error_get_code(nullptr) == HEADRACE_OK);
  CHECK(std::string(headrace_error_get_message(nullptr)).empty());
  CHECK(std::string(headrace_error_get_place(nullptr)).empty());
  CHECK(std::string(headrace_status_get_name(12345)) == "HEADRACE_UNKNOWN");
  CHECK(headrace_tokenizer_get_vocab_size(nullptr) <= 0);
  CHECK(headrace_embedder_get_row_size(nullptr) == 0);
  CHECK(headrace_embedder_get_pools(nullptr) == 0);
  CHECK(headrace_tokenizer_get_eos(nullptr) == -1);
  CHECK(headrace_tokenizer_get_is_special(nullptr, 0) == -1);
  CHECK(headrace_tokenizer_get_id(nullptr, nullptr, 0) == -1);
  CHECK(std::string(headrace_prompt_get_text(nullptr, nullptr)).empty());
  CHECK(headrace_event_get_request_id(nullptr) == 0);
  CHECK(headrace_event_get_index(nullptr) == 0);
  CHECK(headrace_event_get_is_last(nullptr) == 0);
  CHECK(headrace_event_get_tokens(nullptr, nullptr) == nullptr);
  CHECK(headrace_event_get_logprobs(nullptr, nullptr) == nullptr);
  CHECK(std::string(headrace_event_get_finish_reason(nullptr)).empty());
  CHECK(headrace_event_get_status(nullptr) == HEADRACE_OK);
  CHECK(std::string(headrace_event_get_message(nullptr)).empty());
  CHECK(std::string(headrace_event_get_place(nullptr)).empty());
  headrace_model_info_init(nullptr);
  headrace_sampling_init(nullptr);
  headrace_kv_cache_stats_init(nullptr);
  headrace_scheduler_stats_init(nullptr);
  headrace_scheduler_metrics_init(nullptr);
  headrace_latency_init(nullptr);
  headrace_tenant_limits_init(nullptr);
  headrace_tenant_metrics_init(nullptr);
  CHECK(std::string(headrace_event_get_reuse_miss(nullptr)).empty());
  CHECK(std::string(headrace_transcription_get_language(nullptr)).empty());
  CHECK(headrace_transcription_get_num_segments(nullptr) == 0);
  headrace_transcription_params_init(nullptr);
  headrace_speech_segment_init(nullptr);
  headrace_usage_init(nullptr);
  headrace_error_destroy(nullptr);
  headrace_options_destroy(nullptr);
  headrace_source_destroy(nullptr);
  headrace_model_destroy(nullptr);
  headrace_tuning_destroy(nullptr);
  headrace_embedder_destroy(nullptr);
  headrace_tokenizer_destroy(nullptr);
  headrace_detokenizer_destroy(nullptr);
  headrace_chat_template_destroy(nullptr);
  headrace_prompt_destroy(nullptr);
  headrace_kv_cache_destroy(nullptr);
  headrace_session_destroy(nullptr);
  headrace_request_destroy(nullptr);
  headrace_scheduler_destroy(nullptr);
  headrace_event_destroy(nullptr);
  headrace_transcription_destroy(nullptr);
}
