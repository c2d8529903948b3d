#include "capi/guard.h"
#include "capi/handles.h"
#include "model/tokenizer_loader.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

Status check_flags(uint32_t flags, uint32_t known) {
  if ((flags & ~known) != 0) return invalid_argument("flags", "{:#x} has bits that mean nothing here", flags);
  return Status();
}

}  // namespace

namespace headrace::capi {

Result<text::EncodeOptions> encode_options(uint32_t flags) {
  HEADRACE_RETURN_IF_ERROR(check_flags(flags, HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL));
  return text::EncodeOptions{.add_special = (flags & HEADRACE_ADD_SPECIAL) != 0,
                             .parse_special = (flags & HEADRACE_PARSE_SPECIAL) != 0};
}

}  // namespace headrace::capi

extern "C" {

headrace_status headrace_tokenizer_load(const char* path, size_t path_size, headrace_tokenizer** tokenizer,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    HEADRACE_ASSIGN_OR_RETURN(LoadedTokenizer loaded, load_tokenizer(std::string(text)));
    if (!loaded.tokenizer) return not_found("tokenizer", "the files hold none");
    *tokenizer = new headrace_tokenizer{std::move(loaded.tokenizer)};
    return Status();
  });
}

headrace_status headrace_tokenizer_open(const headrace_model* model, headrace_tokenizer** tokenizer,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (tokenizer == nullptr) return null_argument("tokenizer");
    if (!model->loaded->engine->tokenizer) return not_found("tokenizer", "the model's files hold no tokenizer");
    *tokenizer = new headrace_tokenizer{model->loaded->engine->tokenizer};
    return Status();
  });
}

void headrace_tokenizer_destroy(headrace_tokenizer* tokenizer) { delete tokenizer; }

int32_t headrace_tokenizer_get_vocab_size(const headrace_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->tokenizer->vocab_size();
}

int32_t headrace_tokenizer_get_bos(const headrace_tokenizer* tokenizer) {
  return tokenizer == nullptr ? -1 : tokenizer->tokenizer->bos_id().value_or(-1);
}

int32_t headrace_tokenizer_get_eos(const headrace_tokenizer* tokenizer) {
  return tokenizer == nullptr ? -1 : tokenizer->tokenizer->eos_id().value_or(-1);
}

int32_t headrace_tokenizer_get_is_special(const headrace_tokenizer* tokenizer, int32_t token_id) {
  if (tokenizer == nullptr || token_id < 0 || token_id >= tokenizer->tokenizer->vocab_size()) return -1;
  return tokenizer->tokenizer->is_added(token_id) ? 1 : 0;
}

int32_t headrace_tokenizer_get_id(const headrace_tokenizer* tokenizer, const char* token, size_t token_size) {
  if (tokenizer == nullptr || (token == nullptr && token_size != 0)) return -1;
  int32_t id = -1;
  guarded(nullptr, [&]() -> Status {
    id = tokenizer->tokenizer->token_to_id(std::string_view(token, token_size)).value_or(-1);
    return Status();
  });
  return id;
}

headrace_status headrace_tokenizer_encode(const headrace_tokenizer* tokenizer, const char* text, size_t text_size,
                                          uint32_t flags, int32_t* tokens, size_t capacity, size_t* needed,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    HEADRACE_ASSIGN_OR_RETURN(const text::EncodeOptions options, encode_options(flags));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view view, text_argument("text", text, text_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->tokenizer->encode(view, options));
    return copy_out(ids.data(), ids.size(), tokens, capacity, needed);
  });
}

headrace_status headrace_tokenizer_decode(const headrace_tokenizer* tokenizer, const int32_t* tokens, size_t num_tokens,
                                          uint32_t flags, char* buffer, size_t capacity, size_t* needed,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    HEADRACE_RETURN_IF_ERROR(check_flags(flags, HEADRACE_SKIP_SPECIAL));
    HEADRACE_RETURN_IF_ERROR(check_tokens("tokens", tokens, num_tokens, tokenizer->tokenizer->vocab_size()));
    const std::string text =
        tokenizer->tokenizer->decode(std::span(tokens, num_tokens), (flags & HEADRACE_SKIP_SPECIAL) != 0);
    return copy_text(text, buffer, capacity, needed);
  });
}

headrace_status headrace_tokenizer_get_bytes(const headrace_tokenizer* tokenizer, int32_t token_id, char* buffer,
                                             size_t capacity, size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    if (token_id < 0 || token_id >= tokenizer->tokenizer->vocab_size()) {
      return not_found("token_id", "there is no token {}", token_id);
    }
    return copy_text(tokenizer->tokenizer->token_bytes(token_id), buffer, capacity, needed);
  });
}

headrace_status headrace_tokenizer_encode_prompt(const headrace_tokenizer* tokenizer, const headrace_prompt* prompt,
                                                 int32_t* tokens, size_t capacity, size_t* needed,
                                                 headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    if (prompt == nullptr) return null_argument("prompt");
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encode_rendered(*tokenizer->tokenizer, prompt->rendered));
    return copy_out(ids.data(), ids.size(), tokens, capacity, needed);
  });
}

headrace_status headrace_detokenizer_create(const headrace_tokenizer* tokenizer, uint32_t flags,
                                            headrace_detokenizer** detokenizer, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (tokenizer == nullptr) return null_argument("tokenizer");
    if (detokenizer == nullptr) return null_argument("detokenizer");
    HEADRACE_RETURN_IF_ERROR(check_flags(flags, HEADRACE_SKIP_SPECIAL));
    *detokenizer = new headrace_detokenizer{
        text::StreamingDetokenizer(tokenizer->tokenizer, (flags & HEADRACE_SKIP_SPECIAL) != 0), std::string()};
    return Status();
  });
}

headrace_status headrace_detokenizer_push(headrace_detokenizer* detokenizer, int32_t token_id, const char** text,
                                          size_t* text_size, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (detokenizer == nullptr) return null_argument("detokenizer");
    if (text == nullptr || text_size == nullptr) return null_argument(text == nullptr ? "text" : "text_size");
    detokenizer->text = detokenizer->detokenizer.push(token_id);
    *text = detokenizer->text.c_str();
    *text_size = detokenizer->text.size();
    return Status();
  });
}

headrace_status headrace_detokenizer_flush(headrace_detokenizer* detokenizer, const char** text, size_t* text_size,
                                           headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (detokenizer == nullptr) return null_argument("detokenizer");
    if (text == nullptr || text_size == nullptr) return null_argument(text == nullptr ? "text" : "text_size");
    detokenizer->text = detokenizer->detokenizer.flush();
    *text = detokenizer->text.c_str();
    *text_size = detokenizer->text.size();
    return Status();
  });
}

void headrace_detokenizer_destroy(headrace_detokenizer* detokenizer) { delete detokenizer; }

}  // extern "C"
