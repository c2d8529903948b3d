#include "engine/session.h"

#include <utility>

#include "base/checked.h"
#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

extern "C" {

headrace_status headrace_session_create(const headrace_model* model, headrace_kv_cache* kv_cache,
                                        const headrace_options* options, headrace_session** session,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(auto created,
                              engine::Session::create(model->loaded->engine, kv_cache ? kv_cache->cache : nullptr,
                                                      options_or_default(options)));
    *session = new headrace_session{model->loaded, std::move(created), {}};
    return Status();
  });
}

void headrace_session_destroy(headrace_session* session) { delete session; }

headrace_status headrace_session_append_tokens(headrace_session* session, const int32_t* tokens, size_t num_tokens,
                                               headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (tokens == nullptr && num_tokens != 0) return null_argument("tokens");
    return session->session->append_tokens(std::span(tokens, num_tokens));
  });
}

headrace_status headrace_session_append_text(headrace_session* session, const char* text, size_t text_size,
                                             uint32_t flags, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("text", text, text_size));
    HEADRACE_ASSIGN_OR_RETURN(const text::EncodeOptions options, encode_options(flags));
    return session->session->append_text(view, options);
  });
}

headrace_status headrace_session_append_message(headrace_session* session, const char* role, size_t role_size,
                                                const char* content, size_t content_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view role_text, text_argument("role", role, role_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view content_text, text_argument("content", content, content_size));
    return session->session->append_message(role_text, content_text);
  });
}

headrace_status headrace_session_get_tokens(const headrace_session* session, int32_t* tokens, size_t capacity,
                                            size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    const std::vector<int32_t> all = session->session->tokens();
    return copy_out(all.data(), all.size(), tokens, capacity, needed);
  });
}

headrace_status headrace_session_evaluate(headrace_session* session, const int32_t* tokens, size_t num_tokens,
                                          float* logits, size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (tokens == nullptr && num_tokens != 0) return null_argument("tokens");
    if (logits == nullptr && capacity != 0) return null_argument("logits");
    const bool wants_logits = logits != nullptr || needed != nullptr;
    if (wants_logits) {
      if (needed == nullptr) return null_argument("needed");
      const size_t vocab_size = static_cast<size_t>(session->session->model()->executor->vocab_size());
      const std::optional<size_t> count = checked_mul(num_tokens, vocab_size);
      if (!count) return invalid_argument("num_tokens", "{} is more than can be counted", num_tokens);
      *needed = *count;
      if (*count > capacity) {
        return Status(StatusCode::kBufferTooSmall,
                      fmt::format("{} logits do not fit into a capacity of {}", *count, capacity));
      }
    }
    return session->session->evaluate(std::span(tokens, num_tokens), logits);
  });
}

headrace_status headrace_session_fork(const headrace_session* session, headrace_session** forked,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (forked == nullptr) return null_argument("forked");
    HEADRACE_ASSIGN_OR_RETURN(auto created, session->session->fork());
    *forked = new headrace_session{session->loaded, std::move(created), {}};
    return Status();
  });
}

headrace_status headrace_session_rewind(headrace_session* session, size_t num_tokens, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (num_tokens > static_cast<size_t>(INT64_MAX))
      return invalid_argument("num_tokens", "{} is too many", num_tokens);
    return session->session->rewind(static_cast<int64_t>(num_tokens));
  });
}

headrace_status headrace_session_set_pinned(headrace_session* session, int32_t pinned, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const bool pins, flag_argument("pinned", pinned));
    session->session->set_pinned(pins);
    return Status();
  });
}

headrace_status headrace_session_set_adapter(headrace_session* session, const headrace_adapter* adapter,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (adapter != nullptr && adapter->loaded != session->loaded) {
      return failed_precondition("adapter", "belongs to another model");
    }
    return session->session->set_adapter(adapter == nullptr ? nullptr : adapter->adapter);
  });
}

headrace_status headrace_session_save(const headrace_session* session, const char* path, size_t path_size,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    return session->session->save(std::string(text));
  });
}

headrace_status headrace_session_park(headrace_session* session, const char* path, size_t path_size,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    return session->session->park(std::string(text));
  });
}

headrace_status headrace_session_restore(const headrace_model* model, headrace_kv_cache* kv_cache,
                                         const headrace_options* options, headrace_source* source,
                                         headrace_session** session, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (source == nullptr) return null_argument("source");
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(auto restored,
                              engine::Session::restore(model->loaded->engine, kv_cache ? kv_cache->cache : nullptr,
                                                       options_or_default(options), source->source));
    *session = new headrace_session{model->loaded, std::move(restored), {}};
    return Status();
  });
}

headrace_status headrace_session_set_cache_salt(headrace_session* session, const char* salt, size_t salt_size,
                                                headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("salt", salt, salt_size));
    return session->session->set_cache_salt(std::string(view));
  });
}

headrace_status headrace_session_add_image(headrace_session* session, const uint8_t* rgb, size_t rgb_size,
                                           uint32_t height, uint32_t width, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(auto image, read_rgb(*session->loaded, rgb, rgb_size, height, width));
    session->images.push_back(std::move(image));
    return Status();
  });
}

headrace_status headrace_session_append_parts(headrace_session* session, const char* role, size_t role_size,
                                              const char* parts, size_t parts_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (session == nullptr) return null_argument("session");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view role_text, text_argument("role", role, role_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view parts_text, text_argument("parts", parts, parts_size));
    auto images = std::exchange(session->images, {});
    return session->session->append_parts(role_text, parts_text, std::move(images));
  });
}

}  // extern "C"
