#include <chrono>

#include <nlohmann/json.hpp>

#include "capi/guard.h"
#include "capi/handles.h"
#include "formats/json.h"
#include "model/tokenizer_loader.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

Result<HeldJson<nlohmann::ordered_json>> json_argument(const char* name, std::string_view text) {
  if (text.empty()) return HeldJson<nlohmann::ordered_json>();
  JsonOptions options;
  options.refuse_duplicate_keys = false;  // as Python's json: the last counts
  return parse_ordered_json(text, name, options);
}

}  // namespace

namespace headrace::capi {

Result<text::RenderedPrompt> render_chat(const text::ChatTemplate& chat_template, std::string_view messages,
                                         std::string_view tools, std::string_view variables, bool add_generation_prompt,
                                         int64_t now_unix_seconds) {
  HEADRACE_ASSIGN_OR_RETURN(const auto message_list, json_argument("messages", messages));
  HEADRACE_ASSIGN_OR_RETURN(const auto tool_list, json_argument("tools", tools));
  HEADRACE_ASSIGN_OR_RETURN(const auto variable_map, json_argument("variables", variables));
  if (!message_list.is_array()) return invalid_argument("messages", "is not a JSON array");
  if (!tool_list.is_null() && !tool_list.is_array()) return invalid_argument("tools", "is not a JSON array");
  if (!variable_map.is_null() && !variable_map.is_object())
    return invalid_argument("variables", "is not a JSON object");
  for (size_t i = 0; i < message_list.size(); ++i) {
    if (!message_list[i].is_object()) return invalid_argument(fmt::format("messages[{}]", i), "is not a JSON object");
    if (!message_list[i].contains("role")) return invalid_argument(fmt::format("messages[{}].role", i), "is missing");
  }
  text::RenderOptions options;
  options.add_generation_prompt = add_generation_prompt;
  options.now_unix_seconds = now_unix_seconds;
  if (now_unix_seconds < 0) {
    options.now_unix_seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  return chat_template.render(message_list, tool_list, variable_map, options);
}

Result<std::vector<int32_t>> encode_rendered(const text::Tokenizer& tokenizer, const text::RenderedPrompt& prompt) {
  std::vector<text::Tokenizer::Span> spans;
  for (const text::RenderedSpan& span : prompt.spans) {
    spans.push_back({std::string_view(prompt.text).substr(span.begin, span.end - span.begin), !span.is_content});
  }
  // The template itself writes BOS where the model wants it.
  return tokenizer.encode_spans(spans, /*add_special=*/false);
}

}  // namespace headrace::capi

extern "C" {

headrace_status headrace_chat_template_create(const char* source, size_t source_size, const char* special_tokens,
                                              size_t special_tokens_size, headrace_chat_template** chat_template,
                                              headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (chat_template == nullptr) return null_argument("chat_template");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view source_text, text_argument("source", source, source_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view tokens_text,
                              text_argument("special_tokens", special_tokens, special_tokens_size));
    HEADRACE_ASSIGN_OR_RETURN(const auto tokens, json_argument("special_tokens", tokens_text));
    std::map<std::string, std::string> token_map;
    if (!tokens.is_null() && !tokens.is_object()) return invalid_argument("special_tokens", "is not a JSON object");
    for (const auto& [name, token] : tokens.items()) {
      if (!token.is_string()) return invalid_argument("special_tokens." + name, "is not a string");
      token_map[name] = token.get<std::string>();
    }
    HEADRACE_ASSIGN_OR_RETURN(auto parsed, text::ChatTemplate::parse(source_text, std::move(token_map)));
    *chat_template = new headrace_chat_template{std::move(parsed)};
    return Status();
  });
}

headrace_status headrace_chat_template_load(const char* path, size_t path_size, headrace_chat_template** chat_template,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (chat_template == nullptr) return null_argument("chat_template");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, path_argument(path, path_size));
    HEADRACE_ASSIGN_OR_RETURN(const LoadedTokenizer loaded, load_tokenizer(std::string(text)));
    HEADRACE_RETURN_IF_ERROR(loaded.no_default_template);
    if (loaded.chat_template.empty()) return not_found("chat_template", "the files hold none");
    HEADRACE_ASSIGN_OR_RETURN(auto parsed, text::ChatTemplate::parse(loaded.chat_template, loaded.special_tokens));
    *chat_template = new headrace_chat_template{std::move(parsed)};
    return Status();
  });
}

headrace_status headrace_chat_template_open(const headrace_model* model, headrace_chat_template** chat_template,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (chat_template == nullptr) return null_argument("chat_template");
    HEADRACE_ASSIGN_OR_RETURN(auto own, model->loaded->model->chat_template());
    *chat_template = new headrace_chat_template{std::move(own)};
    return Status();
  });
}

void headrace_chat_template_destroy(headrace_chat_template* chat_template) { delete chat_template; }

headrace_status headrace_chat_template_render(const headrace_chat_template* chat_template, const char* messages,
                                              size_t messages_size, const char* tools, size_t tools_size,
                                              const char* variables, size_t variables_size,
                                              int32_t add_generation_prompt, int64_t now_unix_seconds,
                                              headrace_prompt** prompt, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (chat_template == nullptr) return null_argument("chat_template");
    if (prompt == nullptr) return null_argument("prompt");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view messages_text, text_argument("messages", messages, messages_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view tools_text, text_argument("tools", tools, tools_size));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view variables_text,
                              text_argument("variables", variables, variables_size));
    HEADRACE_ASSIGN_OR_RETURN(const bool add_prompt, flag_argument("add_generation_prompt", add_generation_prompt));
    HEADRACE_ASSIGN_OR_RETURN(text::RenderedPrompt rendered,
                              render_chat(*chat_template->chat_template, messages_text, tools_text, variables_text,
                                          add_prompt, now_unix_seconds));
    *prompt = new headrace_prompt{std::move(rendered)};
    return Status();
  });
}

void headrace_prompt_destroy(headrace_prompt* prompt) { delete prompt; }

const char* headrace_prompt_get_text(const headrace_prompt* prompt, size_t* text_size) {
  if (text_size != nullptr) *text_size = prompt == nullptr ? 0 : prompt->rendered.text.size();
  return prompt == nullptr ? "" : prompt->rendered.text.c_str();
}

size_t headrace_prompt_get_span_count(const headrace_prompt* prompt) {
  return prompt == nullptr ? 0 : prompt->rendered.spans.size();
}

headrace_status headrace_prompt_get_span(const headrace_prompt* prompt, size_t index, size_t* begin, size_t* end,
                                         int32_t* is_content, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (prompt == nullptr) return null_argument("prompt");
    if (begin == nullptr) return null_argument("begin");
    if (end == nullptr) return null_argument("end");
    if (is_content == nullptr) return null_argument("is_content");
    if (index >= prompt->rendered.spans.size()) return not_found("index", "there is no span {}", index);
    const text::RenderedSpan& span = prompt->rendered.spans[index];
    *begin = span.begin;
    *end = span.end;
    *is_content = span.is_content ? 1 : 0;
    return Status();
  });
}

}  // extern "C"
