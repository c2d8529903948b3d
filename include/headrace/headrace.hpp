// Headrace for C++17: a header-only layer over headrace.h. Values own their handles (move-only where the handle is
// unique), text is std::string, failures are thrown as headrace::Error on the caller's side of the C ABI. It needs
// nothing but headrace.h and headrace_experimental.h, so any compiler and standard library can link the same library. Thread rules are those of the
// C functions.
#pragma once

#include <headrace/headrace.h>
#include <headrace/headrace_experimental.h>
#include <headrace/headrace_options.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {
inline namespace api_v1 {

// Called with the fraction done; false cancels the load.
using Progress = std::function<bool(double)>;

class Model;

// A rendered chat prompt and where its bytes came from.
class Prompt {
 public:
  struct Span {
    size_t begin, end;
    bool is_content;
  };
  explicit Prompt(headrace_prompt* handle) : handle_(handle) {}
  std::string text() const {
    size_t size = 0;
    const char* text = headrace_prompt_get_text(handle_.get(), &size);
    return std::string(text, size);
  }
  std::vector<Span> spans() const {
    std::vector<Span> spans;
    for (size_t index = 0; index < headrace_prompt_get_span_count(handle_.get()); ++index) {
      size_t begin = 0, end = 0;
      int32_t is_content = 0;
      detail::call([&](headrace_error** error) {
        return headrace_prompt_get_span(handle_.get(), index, &begin, &end, &is_content, error);
      });
      spans.push_back({begin, end, is_content != 0});
    }
    return spans;
  }
  const headrace_prompt* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_prompt, headrace_prompt_destroy> handle_;
};

struct RenderArguments {
  std::string messages;   // JSON array
  std::string tools;      // JSON array, or empty
  std::string variables;  // JSON object, or empty
  bool add_generation_prompt = true;
  std::optional<int64_t> now_unix_seconds;
};

class ChatTemplate {
 public:
  explicit ChatTemplate(std::string_view source, std::string_view special_tokens_json = {}) {
    headrace_chat_template* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_chat_template_create(source.data(), source.size(), special_tokens_json.data(),
                                           special_tokens_json.size(), &handle, error);
    });
    handle_.reset(handle);
  }
  inline explicit ChatTemplate(const Model& model);
  // The template of a file or folder whose weights are not read.
  static ChatTemplate load(std::string_view path) {
    headrace_chat_template* handle = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_chat_template_load(path.data(), path.size(), &handle, error); });
    return ChatTemplate(handle);
  }
  explicit ChatTemplate(headrace_chat_template* handle) : handle_(handle) {}
  headrace_chat_template* get() const { return handle_.get(); }
  Prompt render(const RenderArguments& arguments) const {
    headrace_prompt* prompt = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_chat_template_render(handle_.get(), arguments.messages.data(), arguments.messages.size(),
                                           arguments.tools.data(), arguments.tools.size(), arguments.variables.data(),
                                           arguments.variables.size(), arguments.add_generation_prompt ? 1 : 0,
                                           arguments.now_unix_seconds.value_or(-1), &prompt, error);
    });
    return Prompt(prompt);
  }

 private:
  detail::Unique<headrace_chat_template, headrace_chat_template_destroy> handle_;
};

class Tokenizer {
 public:
  // A GGUF file, or a folder with tokenizer.json.
  static Tokenizer load(std::string_view path) {
    headrace_tokenizer* handle = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_tokenizer_load(path.data(), path.size(), &handle, error); });
    return Tokenizer(handle);
  }
  explicit Tokenizer(headrace_tokenizer* handle) : handle_(handle, headrace_tokenizer_destroy) {}

  int32_t vocab_size() const { return headrace_tokenizer_get_vocab_size(handle_.get()); }
  std::optional<int32_t> bos() const { return optional_id(headrace_tokenizer_get_bos(handle_.get())); }
  std::optional<int32_t> eos() const { return optional_id(headrace_tokenizer_get_eos(handle_.get())); }
  std::optional<int32_t> id(std::string_view token) const {
    return optional_id(headrace_tokenizer_get_id(handle_.get(), token.data(), token.size()));
  }
  bool is_special(int32_t token_id) const { return headrace_tokenizer_get_is_special(handle_.get(), token_id) == 1; }

  std::vector<int32_t> encode(std::string_view text, bool parse_special = true, bool add_special = true) const {
    const uint32_t flags = (parse_special ? HEADRACE_PARSE_SPECIAL : 0u) | (add_special ? HEADRACE_ADD_SPECIAL : 0u);
    return detail::read_buffer<int32_t>([&](int32_t* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_tokenizer_encode(handle_.get(), text.data(), text.size(), flags, buffer, capacity, needed, error);
    });
  }
  std::vector<int32_t> encode(const Prompt& prompt) const {
    return detail::read_buffer<int32_t>([&](int32_t* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_tokenizer_encode_prompt(handle_.get(), prompt.get(), buffer, capacity, needed, error);
    });
  }
  std::string decode(const std::vector<int32_t>& tokens, bool skip_special = false) const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_tokenizer_decode(handle_.get(), tokens.data(), tokens.size(),
                                       skip_special ? HEADRACE_SKIP_SPECIAL : 0u, buffer, capacity, needed, error);
    });
  }
  // The bytes a token stands for; not UTF-8 by themselves.
  std::string bytes(int32_t token_id) const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_tokenizer_get_bytes(handle_.get(), token_id, buffer, capacity, needed, error);
    });
  }
  const headrace_tokenizer* get() const { return handle_.get(); }

 private:
  static std::optional<int32_t> optional_id(int32_t id) { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }
  std::shared_ptr<headrace_tokenizer> handle_;
};

// A low-rank adapter of a model (PEFT folder); copies share it.
class Adapter {
 public:
  inline static Adapter load(const Model& model, std::string_view path);
  // JSON: modules, max_rank, parameters, bytes, identity.
  std::string describe() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_adapter_describe(handle_.get(), buffer, capacity, needed, error);
    });
  }
  const headrace_adapter* get() const { return handle_.get(); }

 private:
  explicit Adapter(headrace_adapter* handle) : handle_(handle, headrace_adapter_destroy) {}
  std::shared_ptr<headrace_adapter> handle_;
};

// Tokens in, valid UTF-8 out.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true) {
    headrace_detokenizer* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_detokenizer_create(tokenizer.get(), skip_special ? HEADRACE_SKIP_SPECIAL : 0u, &handle, error);
    });
    handle_.reset(handle);
  }
  std::string push(int32_t token_id) {
    const char* text = nullptr;
    size_t size = 0;
    detail::call([&](headrace_error** error) {
      return headrace_detokenizer_push(handle_.get(), token_id, &text, &size, error);
    });
    return std::string(text, size);
  }
  std::string flush() {
    const char* text = nullptr;
    size_t size = 0;
    detail::call(
        [&](headrace_error** error) { return headrace_detokenizer_flush(handle_.get(), &text, &size, error); });
    return std::string(text, size);
  }

 private:
  detail::Unique<headrace_detokenizer, headrace_detokenizer_destroy> handle_;
};

// A file's bytes for Model::load: the caller's memory must outlive what is loaded from it.
class Source {
 public:
  static Source path(std::string_view path) {
    headrace_source* handle = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_source_open_path(path.data(), path.size(), &handle, error); });
    return Source(handle);
  }
  static Source memory(const void* data, size_t size) {
    headrace_source* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_source_open_memory(data, size, nullptr, nullptr, &handle, error);
    });
    return Source(handle);
  }
  headrace_source* get() const { return handle_.get(); }

 private:
  explicit Source(headrace_source* handle) : handle_(handle) {}
  detail::Unique<headrace_source, headrace_source_destroy> handle_;
};

// A loaded model; copies share it.
class Model {
 public:
  static Model load(std::string_view path, const Options& options = Options(), const Progress& progress = {}) {
    headrace_model* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_model_load(path.data(), path.size(), options.get(), progress ? report_progress : nullptr,
                                 const_cast<Progress*>(&progress), &handle, error);
    });
    return Model(handle);
  }
  static Model load(const std::vector<Source>& sources, const Options& options = Options(),
                    const Progress& progress = {}) {
    std::vector<headrace_source*> handles;
    for (const Source& source : sources) handles.push_back(source.get());
    headrace_model* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_model_load_sources(handles.data(), handles.size(), options.get(),
                                         progress ? report_progress : nullptr, const_cast<Progress*>(&progress),
                                         &handle, error);
    });
    return Model(handle);
  }
  // JSON about a file whose weights are not loaded, with a plan for memory_bytes (0: none).
  static std::string inspect(std::string_view path, uint64_t memory_bytes = 0) {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_model_inspect(path.data(), path.size(), memory_bytes, buffer, capacity, needed, error);
    });
  }

  headrace_model_info info() const {
    headrace_model_info info;
    headrace_model_info_init(&info);
    detail::call([&](headrace_error** error) { return headrace_model_get_info(handle_.get(), &info, error); });
    return info;
  }
  std::string describe() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_model_describe(handle_.get(), buffer, capacity, needed, error);
    });
  }
  // JSON of what the ops took, for a model loaded with "engine.profile" "ops" or "trace"; and, with "trace", each of them.
  std::string describe_profile() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_model_describe_profile(handle_.get(), buffer, capacity, needed, error);
    });
  }
  std::string describe_trace() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_model_describe_trace(handle_.get(), buffer, capacity, needed, error);
    });
  }
  // Measures how this machine computes the model's products best: a table, as JSON, for a file that "engine.tuning" names.
  // known: an earlier table, to be extended.
  std::string tune(double seconds, std::string_view known = {}, const Progress& progress = {}) const {
    headrace_tuning* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_tuning_create(handle_.get(), seconds, known.data(), known.size(),
                                    progress ? report_progress : nullptr, const_cast<Progress*>(&progress), &handle,
                                    error);
    });
    const detail::Unique<headrace_tuning, headrace_tuning_destroy> tuning(handle);
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_tuning_describe(tuning.get(), buffer, capacity, needed, error);
    });
  }
  Tokenizer tokenizer() const {
    headrace_tokenizer* tokenizer = nullptr;
    detail::call([&](headrace_error** error) { return headrace_tokenizer_open(handle_.get(), &tokenizer, error); });
    return Tokenizer(tokenizer);
  }
  bool has_chat_template() const { return info().has_chat_template != 0; }
  headrace_sampling sampling() const {
    headrace_sampling sampling;
    headrace_sampling_init(&sampling);
    detail::call([&](headrace_error** error) { return headrace_model_get_sampling(handle_.get(), &sampling, error); });
    return sampling;
  }
  headrace_model* get() const { return handle_.get(); }

 private:
  explicit Model(headrace_model* handle) : handle_(handle, headrace_model_destroy) {}
  // An exception of the host's callback must not cross the C frames: it cancels the load.
  static int32_t report_progress(void* user, double fraction) {
    try {
      return (*static_cast<const Progress*>(user))(fraction) ? 0 : 1;
    } catch (...) {
      return 1;
    }
  }
  std::shared_ptr<headrace_model> handle_;
};

inline ChatTemplate::ChatTemplate(const Model& model) {
  headrace_chat_template* handle = nullptr;
  detail::call([&](headrace_error** error) { return headrace_chat_template_open(model.get(), &handle, error); });
  handle_.reset(handle);
}

// Blocks of keys and values; copies share them.
class KVCache {
 public:
  explicit KVCache(const Model& model, const Options& options = Options()) {
    headrace_kv_cache* handle = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_kv_cache_create(model.get(), options.get(), &handle, error); });
    handle_.reset(handle, headrace_kv_cache_destroy);
  }
  headrace_kv_cache_stats stats() const {
    headrace_kv_cache_stats stats;
    headrace_kv_cache_stats_init(&stats);
    detail::call([&](headrace_error** error) { return headrace_kv_cache_get_stats(handle_.get(), &stats, error); });
    return stats;
  }
  void clear() {
    detail::call([&](headrace_error** error) { return headrace_kv_cache_clear(handle_.get(), error); });
  }
  // Waits until all prefixes that it knows are on disk (the option kv.disk_path).
  void flush() {
    detail::call([&](headrace_error** error) { return headrace_kv_cache_flush(handle_.get(), error); });
  }
  headrace_kv_cache* get() const { return handle_.get(); }

 private:
  std::shared_ptr<headrace_kv_cache> handle_;
};

// A conversation.
class Session {
 public:
  explicit Session(const Model& model, const Options& options = Options()) : Session(model, nullptr, options) {}
  Session(const Model& model, const KVCache& cache, const Options& options = Options())
      : Session(model, cache.get(), options) {}
  static Session restore(const Model& model, const KVCache& cache, std::string_view path,
                         const Options& options = Options()) {
    const Source source = Source::path(path);
    headrace_session* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_session_restore(model.get(), cache.get(), options.get(), source.get(), &handle, error);
    });
    return Session(handle);
  }

  void append(const std::vector<int32_t>& tokens) {
    detail::call([&](headrace_error** error) {
      return headrace_session_append_tokens(handle_.get(), tokens.data(), tokens.size(), error);
    });
  }
  void append_text(std::string_view text, uint32_t flags = HEADRACE_ADD_SPECIAL) {
    detail::call([&](headrace_error** error) {
      return headrace_session_append_text(handle_.get(), text.data(), text.size(), flags, error);
    });
  }
  void append_message(std::string_view role, std::string_view content) {
    detail::call([&](headrace_error** error) {
      return headrace_session_append_message(handle_.get(), role.data(), role.size(), content.data(), content.size(),
                                             error);
    });
  }
  std::vector<int32_t> tokens() const {
    return detail::read_buffer<int32_t>([&](int32_t* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_session_get_tokens(handle_.get(), buffer, capacity, needed, error);
    });
  }
  // Appends tokens; logits gets float32 [num_tokens, vocab_size].
  void evaluate(const int32_t* tokens, size_t num_tokens, float* logits, size_t capacity) {
    size_t needed = 0;
    detail::call([&](headrace_error** error) {
      return headrace_session_evaluate(handle_.get(), tokens, num_tokens, logits, capacity, &needed, error);
    });
  }
  // Appends tokens and computes them without reading logits: what follows finds their keys and values.
  void evaluate(const std::vector<int32_t>& tokens) {
    detail::call([&](headrace_error** error) {
      return headrace_session_evaluate(handle_.get(), tokens.data(), tokens.size(), nullptr, 0, nullptr, error);
    });
  }
  Session fork() const {
    headrace_session* forked = nullptr;
    detail::call([&](headrace_error** error) { return headrace_session_fork(handle_.get(), &forked, error); });
    return Session(forked);
  }
  void rewind(size_t num_tokens) {
    detail::call([&](headrace_error** error) { return headrace_session_rewind(handle_.get(), num_tokens, error); });
  }
  void set_adapter(const Adapter* adapter) {
    detail::call([&](headrace_error** error) {
      return headrace_session_set_adapter(handle_.get(), adapter ? adapter->get() : nullptr, error);
    });
  }
  // Keeps its cached values while it is idle, whoever needs the room.
  void set_pinned(bool pinned) {
    detail::call(
        [&](headrace_error** error) { return headrace_session_set_pinned(handle_.get(), pinned ? 1 : 0, error); });
  }
  void add_image(const uint8_t* rgb, size_t rgb_size, uint32_t height, uint32_t width) {
    detail::call([&](headrace_error** error) {
      return headrace_session_add_image(handle_.get(), rgb, rgb_size, height, width, error);
    });
  }
  void append_parts(std::string_view role, std::string_view parts) {
    detail::call([&](headrace_error** error) {
      return headrace_session_append_parts(handle_.get(), role.data(), role.size(), parts.data(), parts.size(), error);
    });
  }
  // Another content of a message; those behind it stay.
  void set_message(size_t index, std::string_view content) {
    detail::call([&](headrace_error** error) {
      return headrace_session_set_message(handle_.get(), index, content.data(), content.size(), error);
    });
  }
  void truncate_messages(size_t num_messages) {
    detail::call(
        [&](headrace_error** error) { return headrace_session_truncate_messages(handle_.get(), num_messages, error); });
  }
  // What becomes of a request that would exceed the context: it is refused, which is the default; the oldest messages (or tokens)
  // behind the first keep_first go, so that free_tokens are free (0: half of the context); or a summary takes their place.
  void refuse_overflow() {
    detail::call([&](headrace_error** error) { return headrace_session_set_overflow(handle_.get(), nullptr, error); });
  }
  void drop_overflow(int64_t keep_first, int64_t free_tokens = 0) {
    headrace_overflow overflow;
    headrace_overflow_init(&overflow);
    overflow.kind = HEADRACE_OVERFLOW_DROP;
    set_overflow(overflow, keep_first, free_tokens);
  }
  // Given what goes, and gives what comes, as headrace_summary_get_dropped and headrace_summary_set have them. An exception fails
  // the request.
  using Summarizer = std::function<std::string(std::string_view dropped)>;
  void summarize_overflow(Summarizer summarize, int64_t keep_first, int64_t free_tokens = 0) {
    headrace_overflow overflow;
    headrace_overflow_init(&overflow);
    overflow.kind = HEADRACE_OVERFLOW_SUMMARIZE;
    overflow.summarize = [](void* user, headrace_summary* summary) -> headrace_status {
      try {
        size_t size = 0;
        const char* const dropped = headrace_summary_get_dropped(summary, &size);
        const std::string text = (*static_cast<Summarizer*>(user))(std::string_view(dropped, size));
        return headrace_summary_set(summary, text.data(), text.size(), nullptr);
      } catch (...) {
        return HEADRACE_INTERNAL;
      }
    };
    overflow.release = [](void* user) { delete static_cast<Summarizer*>(user); };
    auto owned = std::make_unique<Summarizer>(std::move(summarize));
    overflow.user = owned.get();
    set_overflow(overflow, keep_first, free_tokens);
    owned.release();
  }
  headrace_dropped dropped() const {
    headrace_dropped dropped;
    headrace_dropped_init(&dropped);
    detail::call([&](headrace_error** error) { return headrace_session_get_dropped(handle_.get(), &dropped, error); });
    return dropped;
  }
  void set_cache_salt(std::string_view salt) {
    detail::call([&](headrace_error** error) {
      return headrace_session_set_cache_salt(handle_.get(), salt.data(), salt.size(), error);
    });
  }
  void save(std::string_view path) const {
    detail::call(
        [&](headrace_error** error) { return headrace_session_save(handle_.get(), path.data(), path.size(), error); });
  }
  // Saves it, and gives its cached values up until they are needed again.
  void park(std::string_view path) {
    detail::call(
        [&](headrace_error** error) { return headrace_session_park(handle_.get(), path.data(), path.size(), error); });
  }
  headrace_session* get() const { return handle_.get(); }

 private:
  explicit Session(headrace_session* handle) : handle_(handle) {}
  void set_overflow(headrace_overflow& overflow, int64_t keep_first, int64_t free_tokens) {
    overflow.keep_first = keep_first;
    overflow.free_tokens = free_tokens;
    detail::call(
        [&](headrace_error** error) { return headrace_session_set_overflow(handle_.get(), &overflow, error); });
  }
  Session(const Model& model, headrace_kv_cache* cache, const Options& options) {
    headrace_session* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_session_create(model.get(), cache, options.get(), &handle, error);
    });
    handle_.reset(handle);
  }
  detail::Unique<headrace_session, headrace_session_destroy> handle_;
};

// headrace_sampling with its defaults: greedy, no penalties.
struct Sampling : headrace_sampling {
  Sampling() { headrace_sampling_init(this); }
  Sampling(const headrace_sampling& sampling) : headrace_sampling(sampling) {}  // NOLINT
};

// A walk of one sample that says which tokens may come (headrace_token_mask). It is used by one thread at a time. An exception of
// fill or advance fails the request.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets the bits of the tokens that may come now: token t is bit t % 32 of words[t / 32], which come zeroed. False: all may.
  virtual bool fill(uint32_t* words, size_t num_words) = 0;
  // The token comes. False where it may not: the walk stands where it stood.
  virtual bool advance(int32_t token) = 0;
  // Takes the last tokens back, no more than came.
  virtual void retreat(int32_t num_tokens) noexcept = 0;
};
// The start of a walk, for each sample one.
using TokenMaskSource = std::function<std::unique_ptr<TokenMask>()>;

namespace detail {

inline void* start_mask(void* user) {
  try {
    return (*static_cast<TokenMaskSource*>(user))().release();
  } catch (...) {
    return nullptr;
  }
}
inline int32_t fill_mask(void* walk, uint32_t* words, size_t num_words) {
  try {
    return static_cast<TokenMask*>(walk)->fill(words, num_words) ? 1 : 0;
  } catch (...) {
    for (size_t i = 0; i < num_words; ++i) words[i] = 0;
    return 1;
  }
}
inline int32_t advance_mask(void* walk, int32_t token) {
  try {
    return static_cast<TokenMask*>(walk)->advance(token) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

}  // namespace detail

// What to generate; may be submitted many times.
class Request {
 public:
  explicit Request(const Model& model) {
    headrace_request* handle = nullptr;
    detail::call([&](headrace_error** error) { return headrace_request_create(model.get(), &handle, error); });
    handle_.reset(handle);
  }
  Request& add_text(std::string_view text, uint32_t flags = HEADRACE_ADD_SPECIAL) {
    return call([&](headrace_error** error) {
      return headrace_request_add_text(get(), text.data(), text.size(), flags, error);
    });
  }
  Request& add_tokens(const std::vector<int32_t>& tokens) {
    return call([&](headrace_error** error) {
      return headrace_request_add_tokens(get(), tokens.data(), tokens.size(), error);
    });
  }
  // See headrace_request_add_image_pixels.
  Request& add_image_pixels(const float* pixels, size_t num_pixels, uint32_t height, uint32_t width) {
    return call([&](headrace_error** error) {
      return headrace_request_add_image_pixels(get(), pixels, num_pixels, height, width, error);
    });
  }
  // See headrace_request_add_image.
  Request& add_image(const uint8_t* rgb, size_t rgb_size, uint32_t height, uint32_t width) {
    return call(
        [&](headrace_error** error) { return headrace_request_add_image(get(), rgb, rgb_size, height, width, error); });
  }
  // See headrace_request_set_encoder_tokens.
  Request& set_encoder_tokens(const std::vector<int32_t>& tokens) {
    return call([&](headrace_error** error) {
      return headrace_request_set_encoder_tokens(get(), tokens.data(), tokens.size(), error);
    });
  }
  Request& set_encoder_text(std::string_view text, uint32_t flags = HEADRACE_ADD_SPECIAL) {
    return call([&](headrace_error** error) {
      return headrace_request_set_encoder_text(get(), text.data(), text.size(), flags, error);
    });
  }
  // See headrace_request_set_audio.
  Request& set_audio(const float* samples, size_t num_samples, uint32_t sample_rate) {
    return call([&](headrace_error** error) {
      return headrace_request_set_audio(get(), samples, num_samples, sample_rate, error);
    });
  }
  // See headrace_request_set_audio_features.
  Request& set_audio_features(const float* features, size_t num_features, uint32_t num_mels, uint32_t num_frames) {
    return call([&](headrace_error** error) {
      return headrace_request_set_audio_features(get(), features, num_features, num_mels, num_frames, error);
    });
  }
  Request& add_messages(std::string_view messages, std::string_view tools = {}, std::string_view variables = {}) {
    return call([&](headrace_error** error) {
      return headrace_request_add_messages(get(), messages.data(), messages.size(), tools.data(), tools.size(),
                                           variables.data(), variables.size(), error);
    });
  }
  Request& add_prompt(const Prompt& prompt) {
    return call([&](headrace_error** error) { return headrace_request_add_prompt(get(), prompt.get(), error); });
  }
  Request& set_session(const Session& session) {
    return call([&](headrace_error** error) { return headrace_request_set_session(get(), session.get(), error); });
  }
  Request& set_adapter(const Adapter& adapter) {
    return call([&](headrace_error** error) { return headrace_request_set_adapter(get(), adapter.get(), error); });
  }
  Request& set_sampling(const headrace_sampling& sampling) {
    return call([&](headrace_error** error) { return headrace_request_set_sampling(get(), &sampling, error); });
  }
  Request& add_logit_bias(int32_t token_id, float bias) {
    return call([&](headrace_error** error) { return headrace_request_add_logit_bias(get(), token_id, bias, error); });
  }
  Request& add_stop(std::string_view text) {
    return call([&](headrace_error** error) {
      return headrace_request_add_stop_string(get(), text.data(), text.size(), error);
    });
  }
  Request& add_stop_token(int32_t token_id) {
    return call([&](headrace_error** error) { return headrace_request_add_stop_token(get(), token_id, error); });
  }
  Request& set_length(int64_t min_tokens, int64_t max_tokens) {
    return call(
        [&](headrace_error** error) { return headrace_request_set_length(get(), min_tokens, max_tokens, error); });
  }
  Request& set_ignore_eos(bool ignore_eos) {
    return call(
        [&](headrace_error** error) { return headrace_request_set_ignore_eos(get(), ignore_eos ? 1 : 0, error); });
  }
  Request& set_deadline(int64_t milliseconds) {
    return call([&](headrace_error** error) { return headrace_request_set_deadline(get(), milliseconds, error); });
  }
  Request& set_priority(int32_t priority) {
    return call([&](headrace_error** error) { return headrace_request_set_priority(get(), priority, error); });
  }
  // Of the rows of positions [begin, end), behind a session's tokens, to come in events of kHidden.
  Request& set_hidden_states(const std::vector<int32_t>& layers, int64_t begin = 0, int64_t end = INT64_MAX) {
    return call([&](headrace_error** error) {
      return headrace_request_set_hidden_states(get(), layers.data(), layers.size(), begin, end, error);
    });
  }
  Request& set_tenant(std::string_view tenant) {
    return call([&](headrace_error** error) {
      return headrace_request_set_tenant(get(), tenant.data(), tenant.size(), error);
    });
  }
  Request& set_progress(bool progress) {
    return call([&](headrace_error** error) { return headrace_request_set_progress(get(), progress ? 1 : 0, error); });
  }
  Request& set_cache_salt(std::string_view salt) {
    return call([&](headrace_error** error) {
      return headrace_request_set_cache_salt(get(), salt.data(), salt.size(), error);
    });
  }
  // Who guesses ahead: "off", "auto", or names with commas between.
  Request& set_drafter(std::string_view drafter) {
    return call([&](headrace_error** error) {
      return headrace_request_set_drafter(get(), drafter.data(), drafter.size(), error);
    });
  }
  Request& set_zero_retention(bool zero_retention) {
    return call([&](headrace_error** error) {
      return headrace_request_set_zero_retention(get(), zero_retention ? 1 : 0, error);
    });
  }
  // Each sample walks through a mask of its own; null: all tokens may come.
  Request& set_token_mask(TokenMaskSource source) {
    if (!source) {
      return call([&](headrace_error** error) { return headrace_request_set_token_mask(get(), nullptr, error); });
    }
    headrace_token_mask mask;
    headrace_token_mask_init(&mask);
    mask.start = detail::start_mask;
    mask.fill = detail::fill_mask;
    mask.advance = detail::advance_mask;
    mask.retreat = [](void* walk, int32_t num_tokens) { static_cast<TokenMask*>(walk)->retreat(num_tokens); };
    mask.end = [](void* walk) { delete static_cast<TokenMask*>(walk); };
    mask.release = [](void* user) { delete static_cast<TokenMaskSource*>(user); };
    auto owned = std::make_unique<TokenMaskSource>(std::move(source));
    mask.user = owned.get();
    call([&](headrace_error** error) { return headrace_request_set_token_mask(get(), &mask, error); });
    owned.release();
    return *this;
  }
  headrace_request* get() const { return handle_.get(); }

 private:
  friend class Transcription;
  explicit Request(headrace_request* handle) : handle_(handle) {}
  template <class Call>
  Request& call(const Call& function) {
    detail::call(function);
    return *this;
  }
  detail::Unique<headrace_request, headrace_request_destroy> handle_;
};

enum class EventType : int32_t {
  kTokens = HEADRACE_EVENT_TOKENS,
  kPrompt = HEADRACE_EVENT_PROMPT,
  kFinished = HEADRACE_EVENT_FINISHED,
  kFailed = HEADRACE_EVENT_FAILED,
  kHidden = HEADRACE_EVENT_HIDDEN,
  kProgress = HEADRACE_EVENT_PROGRESS,
};

class Event {
 public:
  explicit Event(headrace_event* handle) : handle_(handle) {}
  EventType type() const { return static_cast<EventType>(headrace_event_get_type(get())); }
  uint64_t request_id() const { return headrace_event_get_request_id(get()); }
  uint32_t index() const { return headrace_event_get_index(get()); }
  bool is_last() const { return headrace_event_get_is_last(get()) != 0; }
  std::string text() const {
    size_t size = 0;
    const char* text = headrace_event_get_text(get(), &size);
    return std::string(text, size);
  }
  std::vector<int32_t> tokens() const {
    size_t count = 0;
    const int32_t* tokens = headrace_event_get_tokens(get(), &count);
    return std::vector<int32_t>(tokens, tokens + count);
  }
  std::vector<float> logprobs() const {
    size_t count = 0;
    const float* logprobs = headrace_event_get_logprobs(get(), &count);
    return std::vector<float>(logprobs, logprobs + count);
  }
  std::vector<std::pair<int32_t, float>> top_logprobs(size_t token) const {
    const int32_t* ids = nullptr;
    const float* logprobs = nullptr;
    size_t count = 0;
    detail::call([&](headrace_error** error) {
      return headrace_event_get_top_logprobs(get(), token, &ids, &logprobs, &count, error);
    });
    std::vector<std::pair<int32_t, float>> top;
    for (size_t i = 0; i < count; ++i) top.emplace_back(ids[i], logprobs[i]);
    return top;
  }
  std::string finish_reason() const { return headrace_event_get_finish_reason(get()); }
  // Why no more of the prompt was found in the cache, of kFinished.
  std::string reuse_miss() const { return headrace_event_get_reuse_miss(get()); }
  // Of kProgress.
  headrace_prompt_progress progress() const {
    headrace_prompt_progress progress;
    headrace_prompt_progress_init(&progress);
    detail::call([&](headrace_error** error) { return headrace_event_get_progress(get(), &progress, error); });
    return progress;
  }
  // What failed, as an Error to inspect or throw.
  Error error() const {
    return Error(headrace_event_get_status(get()), headrace_event_get_message(get()), headrace_event_get_place(get()));
  }
  headrace_usage usage() const {
    headrace_usage usage;
    headrace_usage_init(&usage);
    detail::call([&](headrace_error** error) { return headrace_event_get_usage(get(), &usage, error); });
    return usage;
  }
  // Of kHidden; values and layers live as long as the event.
  headrace_hidden_states hidden_states() const {
    headrace_hidden_states rows;
    headrace_hidden_states_init(&rows);
    detail::call([&](headrace_error** error) { return headrace_event_get_hidden_states(get(), &rows, error); });
    return rows;
  }
  // JSON of what became of guesses, of kFinished.
  std::string describe_speculation() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_event_describe_speculation(get(), buffer, capacity, needed, error);
    });
  }
  const headrace_event* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_event, headrace_event_destroy> handle_;
};

// headrace_tenant_limits with its defaults: weight 1, no limits.
struct TenantLimits : headrace_tenant_limits {
  TenantLimits() { headrace_tenant_limits_init(this); }
};

// Runs requests when the host steps it.
class Scheduler {
 public:
  explicit Scheduler(const Model& model, const Options& options = Options()) : Scheduler(model, nullptr, options) {}
  Scheduler(const Model& model, const KVCache& cache, const Options& options = Options())
      : Scheduler(model, cache.get(), options) {}

  uint64_t submit(const Request& request) {
    uint64_t request_id = 0;
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_submit(handle_.get(), request.get(), &request_id, error);
    });
    return request_id;
  }
  void cancel(uint64_t request_id) {
    detail::call([&](headrace_error** error) { return headrace_scheduler_cancel(handle_.get(), request_id, error); });
  }
  // One step; true while there is work.
  bool step() {
    int32_t has_work = 0;
    detail::call([&](headrace_error** error) { return headrace_scheduler_step(handle_.get(), &has_work, error); });
    return has_work != 0;
  }
  std::optional<Event> next_event() {
    headrace_event* event = nullptr;
    detail::call([&](headrace_error** error) { return headrace_event_next(handle_.get(), &event, error); });
    return event ? std::optional<Event>(Event(event)) : std::nullopt;
  }
  // The next one of that request; those of others stay.
  // The next one of that request, waited for; this thread steps where no other one does (headrace_event_wait).
  Event wait(uint64_t request_id) {
    headrace_event* event = nullptr;
    detail::call([&](headrace_error** error) { return headrace_event_wait(handle_.get(), request_id, &event, error); });
    return Event(event);
  }
  std::optional<Event> next_event_of(uint64_t request_id) {
    headrace_event* event = nullptr;
    detail::call(
        [&](headrace_error** error) { return headrace_event_next_of(handle_.get(), request_id, &event, error); });
    return event ? std::optional<Event>(Event(event)) : std::nullopt;
  }
  // Each event is handed over after its step, by the thread that steps; next_event gives none. False: not now, see
  // headrace_event_callback. Null: events are to be taken again. An exception counts as true.
  void set_event_callback(std::function<bool(Event)> callback) {
    using Callback = std::function<bool(Event)>;
    if (!callback) {
      detail::call([&](headrace_error** error) {
        return headrace_scheduler_set_event_callback(handle_.get(), nullptr, nullptr, nullptr, error);
      });
      return;
    }
    auto owned = std::make_unique<Callback>(std::move(callback));
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_set_event_callback(
          handle_.get(),
          [](void* user, headrace_event* event) -> int32_t {
            try {
              return (*static_cast<Callback*>(user))(Event(event)) ? 1 : 0;
            } catch (...) {
              return 1;
            }
          },
          owned.get(), [](void* user) { delete static_cast<Callback*>(user); }, error);
    });
    owned.release();
  }
  // The body of a thread for the engine: steps until stop, and sleeps while there is nothing to do.
  void run() {
    detail::call([&](headrace_error** error) { return headrace_scheduler_run(handle_.get(), error); });
  }
  void stop() {
    detail::call([&](headrace_error** error) { return headrace_scheduler_stop(handle_.get(), error); });
  }
  headrace_scheduler_stats stats() const {
    headrace_scheduler_stats stats;
    headrace_scheduler_stats_init(&stats);
    detail::call([&](headrace_error** error) { return headrace_scheduler_get_stats(handle_.get(), &stats, error); });
    return stats;
  }
  headrace_scheduler_metrics metrics() const {
    headrace_scheduler_metrics metrics;
    headrace_scheduler_metrics_init(&metrics);
    detail::call(
        [&](headrace_error** error) { return headrace_scheduler_get_metrics(handle_.get(), &metrics, error); });
    return metrics;
  }
  // JSON of what became of guesses, of all requests.
  std::string describe_speculation() const {
    return detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
      return headrace_scheduler_describe_speculation(handle_.get(), buffer, capacity, needed, error);
    });
  }
  // kind: HEADRACE_LATENCY_*.
  headrace_latency latency(int32_t kind) const {
    headrace_latency latency;
    headrace_latency_init(&latency);
    detail::call(
        [&](headrace_error** error) { return headrace_scheduler_get_latency(handle_.get(), kind, &latency, error); });
    return latency;
  }
  void set_tenant(std::string_view tenant, const headrace_tenant_limits& limits) {
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_set_tenant(handle_.get(), tenant.data(), tenant.size(), &limits, error);
    });
  }
  std::vector<std::string> tenants() const {
    const std::string text =
        detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
          return headrace_scheduler_get_tenants(handle_.get(), buffer, capacity, needed, error);
        });
    std::vector<std::string> names;
    for (size_t start = 0; start < text.size(); start += names.back().size() + 1) {
      names.emplace_back(text.c_str() + start);
    }
    return names;
  }
  headrace_tenant_metrics tenant_metrics(std::string_view tenant) const {
    headrace_tenant_metrics metrics;
    headrace_tenant_metrics_init(&metrics);
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_get_tenant_metrics(handle_.get(), tenant.data(), tenant.size(), &metrics, error);
    });
    return metrics;
  }
  headrace_latency tenant_latency(std::string_view tenant, int32_t kind) const {
    headrace_latency latency;
    headrace_latency_init(&latency);
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_get_tenant_latency(handle_.get(), tenant.data(), tenant.size(), kind, &latency, error);
    });
    return latency;
  }

  // Runs one request to its end and hands each event to on_event; false cancels. A failed request throws. Events of
  // other requests met on the way are handed over too: use it where this is the only consumer. FAILED_PRECONDITION where the
  // request ended without its last event, which an event callback or another consumer was given.
  void run(const Request& request, const std::function<bool(const Event&)>& on_event) {
    const uint64_t request_id = submit(request);
    for (bool done = false; !done;) {
      const bool works = step();
      while (std::optional<Event> event = next_event()) {
        const bool ours = event->request_id() == request_id;
        if (ours && event->type() == EventType::kFailed) throw event->error();
        if (!on_event(*event) && ours && !event->is_last()) cancel(request_id);
        done = done || (ours && event->is_last());
      }
      if (!works && !done) {
        throw Error(HEADRACE_FAILED_PRECONDITION, "the request's events were given to another consumer", "scheduler");
      }
    }
  }
  // The text of a request with one sample.
  std::string generate(const Request& request) {
    std::string text;
    run(request, [&](const Event& event) {
      text += event.text();
      return true;
    });
    return text;
  }

 private:
  Scheduler(const Model& model, headrace_kv_cache* cache, const Options& options) {
    headrace_scheduler* handle = nullptr;
    detail::call([&](headrace_error** error) {
      return headrace_scheduler_create(model.get(), cache, options.get(), &handle, error);
    });
    handle_.reset(handle);
  }
  detail::Unique<headrace_scheduler, headrace_scheduler_destroy> handle_;
};

inline Adapter Adapter::load(const Model& model, std::string_view path) {
  headrace_adapter* handle = nullptr;
  detail::call([&](headrace_error** error) {
    return headrace_adapter_load(model.get(), path.data(), path.size(), &handle, error);
  });
  return Adapter(handle);
}

inline std::string version() { return headrace_version(); }
// JSON: version, available instruction sets, processors, architectures.
inline std::string describe_system() {
  return detail::read_text([](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
    return headrace_system_describe(buffer, capacity, needed, error);
  });
}

}  // namespace api_v1
}  // namespace headrace

#include <headrace/headrace_encoders.hpp>
