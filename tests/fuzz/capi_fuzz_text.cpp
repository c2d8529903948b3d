// Calls on text: tokenizers, chat templates, messages, and the model that has them.
#include <cstring>

#include "capi_fuzz_world.h"

namespace capi_fuzz {
namespace {

template <class Number>
void append_number(std::string& out, Number number) {
  for (size_t i = 0; i < sizeof number; ++i) out += static_cast<char>(static_cast<uint64_t>(number) >> (8 * i));
}
void append_text(std::string& out, const std::string& text) {
  append_number(out, uint64_t{text.size()});
  out += text;
}

// Types of GGUF metadata.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kString = 8, kArray = 9;

void append_key(std::string& out, const std::string& key, uint32_t type) {
  append_text(out, key);
  append_number(out, type);
}

// Metadata of a byte-level tokenizer for the 96 rows of the model, and the number of its keys.
std::string text_metadata(uint64_t* num_keys) {
  std::vector<std::string> tokens = {"<s>",    "</s>",   "<|user|>", "<|assistant|>", "<|end|>", "\u0120", "\u010A",
                                     "\u00C3", "\u00A9", "ab",       "\u0120a"};
  const size_t controls = 5;
  for (char c = '!'; c <= '~' && tokens.size() < 96; ++c) tokens.emplace_back(1, c);
  std::string out;
  append_key(out, "tokenizer.ggml.model", kString);
  append_text(out, "gpt2");
  append_key(out, "tokenizer.ggml.pre", kString);
  append_text(out, "gpt-2");
  append_key(out, "tokenizer.ggml.tokens", kArray);
  append_number(out, kString);
  append_number(out, uint64_t{tokens.size()});
  for (const std::string& token : tokens) append_text(out, token);
  append_key(out, "tokenizer.ggml.token_type", kArray);
  append_number(out, kInt32);
  append_number(out, uint64_t{tokens.size()});
  for (size_t i = 0; i < tokens.size(); ++i) append_number(out, i < controls ? 3 : 1);  // control or normal
  append_key(out, "tokenizer.ggml.merges", kArray);
  append_number(out, kString);
  append_number(out, uint64_t{2});
  append_text(out, "a b");
  append_text(out, "\u0120 a");
  append_key(out, "tokenizer.ggml.bos_token_id", kUint32);
  append_number(out, uint32_t{0});
  append_key(out, "tokenizer.ggml.eos_token_id", kUint32);
  append_number(out, uint32_t{1});
  append_key(out, "tokenizer.chat_template", kString);
  append_text(
      out,
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{% else %}<|assistant|>{% endif %}"
      "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}");
  append_key(out, "fuzz.padding", kString);
  // The tensors behind stay where they are within the alignment.
  append_text(out, std::string((32 - (out.size() + 8) % 32) % 32, ' '));
  *num_keys = 9;
  return out;
}

}  // namespace

const std::string& text_model_bytes() {
  static const std::string bytes = [] {
    constexpr size_t kCountPlace = 16, kFirstKey = 24;
    std::string all = model_bytes();
    uint64_t num_keys = 0, old_keys = 0;
    all.insert(kFirstKey, text_metadata(&num_keys));
    std::memcpy(&old_keys, all.data() + kCountPlace, sizeof old_keys);
    num_keys += old_keys;
    std::memcpy(all.data() + kCountPlace, &num_keys, sizeof num_keys);
    return all;
  }();
  return bytes;
}

void append_to_session(Input& in, World& world) {
  Error error;
  headrace_session* session = world.sessions.get(in);
  const std::string text = in.text();
  switch (in.byte() % 4) {
    case 0: headrace_session_append_text(session, text.data(), text.size(), in.byte() % 5, error); return;
    case 1:
    case 2: {
      const std::string role = in.byte() % 4 == 0 ? in.text() : in.byte() % 2 == 0 ? "user" : "assistant";
      headrace_session_append_message(session, role.data(), role.size(), text.data(), text.size(), error);
      return;
    }
    default: {
      int32_t tokens[64];
      size_t needed = 0;
      headrace_session_get_tokens(session, tokens, in.byte() % 65, &needed, error);
      return;
    }
  }
}

void query_tokenizer(Input& in, World& world) {
  Error error;
  const headrace_tokenizer* tokenizer = world.tokenizers.get(in);
  const std::string text = in.text();
  const int32_t token = in.token();
  headrace_tokenizer_get_vocab_size(tokenizer);
  headrace_tokenizer_get_bos(tokenizer);
  headrace_tokenizer_get_eos(tokenizer);
  headrace_tokenizer_get_is_special(tokenizer, token);
  headrace_tokenizer_get_id(tokenizer, text.data(), text.size());
  char buffer[64];
  size_t needed = 0;
  headrace_tokenizer_get_bytes(tokenizer, token, buffer, in.byte() % 8, &needed, error);
  const std::vector<int32_t> tokens = in.tokens();
  Error decode_error;
  headrace_tokenizer_decode(tokenizer, tokens.data(), tokens.size(), in.byte() % 9, buffer, in.byte() % 65, &needed,
                            decode_error);
}

void push_to_detokenizer(Input& in, World& world) {
  headrace_detokenizer* detokenizer = world.detokenizers.get(in);
  const char* text = nullptr;
  size_t size = 0;
  for (const int32_t token : in.tokens()) {
    Error error;
    if (headrace_detokenizer_push(detokenizer, token, &text, &size, error) == HEADRACE_OK && text[size] != '\0') {
      std::abort();  // the text is zero-terminated
    }
  }
  Error error;
  headrace_detokenizer_flush(detokenizer, &text, &size, error);
}

// Messages of JSON, with text of the input in them or broken by it.
std::string messages_text(Input& in) {
  std::string out = "[";
  for (int count = in.byte() % 4; count > 0; --count) {
    out += out.size() > 1 ? ",{\"role\":\"" : "{\"role\":\"";
    out += in.byte() % 2 == 0 ? "user" : "assistant";
    out += "\",\"content\":\"";
    for (const char c : in.text()) {
      if (c >= ' ' && c != '"' && c != '\\') out += c;  // of the bytes beyond ASCII none
    }
    out += "\"}";
  }
  out += "]";
  if (in.byte() % 8 == 0) out.insert(in.byte() % out.size(), in.text());
  return out;
}

void render_messages(Input& in, World& world) {
  Error error;
  headrace_chat_template* opened = nullptr;
  headrace_chat_template_open(world.models.get(in), &opened, error);
  if (opened != nullptr || in.byte() % 4 == 0) world.templates.put(in, opened);
  const std::string messages = messages_text(in);
  const std::string tools = in.byte() % 4 == 0 ? in.text() : in.byte() % 2 == 0 ? "" : R"([{"name": "f"}])";
  const std::string variables = in.byte() % 4 == 0 ? in.text() : R"({"flag": true})";
  headrace_prompt* prompt = nullptr;
  Error render_error;
  headrace_chat_template_render(world.templates.get(in), messages.data(), messages.size(), tools.data(), tools.size(),
                                variables.data(), variables.size(), in.byte() % 2, in.small(), &prompt, render_error);
  world.prompts.put(in, prompt);
}

void read_prompt(Input& in, World& world) {
  Error error;
  const headrace_prompt* prompt = world.prompts.get(in);
  size_t size = 0;
  headrace_prompt_get_text(prompt, &size);
  size_t covered = 0;
  for (size_t i = 0; i < headrace_prompt_get_span_count(prompt); ++i) {
    size_t begin = 0, end = 0;
    int32_t is_content = 0;
    headrace_prompt_get_span(prompt, i, &begin, &end, &is_content, nullptr);
    if (begin != covered || end < begin) std::abort();  // spans cover the text in order
    covered = end;
  }
  if (covered != size) std::abort();
  int32_t tokens[64];
  size_t needed = 0;
  headrace_tokenizer_encode_prompt(world.tokenizers.get(in), prompt, tokens, in.byte() % 65, &needed, error);
}

void add_to_request(Input& in, World& world) {
  Error error;
  headrace_request* request = world.requests.get(in);
  switch (in.byte() % 4) {
    case 0: {
      const std::string text = in.text();
      headrace_request_add_text(request, text.data(), text.size(), in.byte() % 5, error);
      return;
    }
    case 1: {
      const std::string messages = messages_text(in);
      headrace_request_add_messages(request, messages.data(), messages.size(), nullptr, 0, nullptr, 0, error);
      return;
    }
    case 2: headrace_request_add_stop_token(request, in.token(), error); return;
    default: headrace_request_set_ignore_eos(request, in.byte() % 3, error); return;
  }
}

}  // namespace capi_fuzz
