// What the calls of the fuzzer work on: the input as a stream of arguments, and the handles made so far.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <headrace/headrace.h>
#include <headrace/headrace_experimental.h>

namespace capi_fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int32_t small() { return static_cast<int8_t>(byte()); }
  uint32_t word() {
    const uint32_t low = byte();
    return low | static_cast<uint32_t>(byte()) << 8 | static_cast<uint32_t>(byte()) << 16 |
           static_cast<uint32_t>(byte()) << 24;
  }
  std::string text() {
    std::string out(byte() % 24, '\0');
    for (char& c : out) c = static_cast<char>(byte());
    return out;
  }
  // A token of the tiny model most of the time.
  int32_t token() {
    const uint8_t value = byte();
    return value < 250 ? value % 96 : value < 253 ? -1 : 1 << 20;
  }
  std::vector<int32_t> tokens() {
    std::vector<int32_t> out(byte() % 40);
    for (int32_t& id : out) id = token();
    return out;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// The bytes of the tiny model: as it is, and with a tokenizer and a chat template in its metadata.
const std::string& model_bytes();
const std::string& text_model_bytes();

// A few handles of one type; the last slot always stays NULL.
template <class Handle, void (*Destroy)(Handle*)>
class Slots {
 public:
  Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots() {
    for (Handle* handle : handles_) Destroy(handle);
  }
  Handle* get(Input& in) const { return handles_[in.byte() % 4]; }
  // A free place for an output.
  void put(Input& in, Handle* handle) {
    Handle*& slot = handles_[in.byte() % 3];
    Destroy(slot);
    slot = handle;
  }
  void destroy(Input& in) { put(in, nullptr); }

 private:
  Handle* handles_[4] = {};
};

// Every error object is read and destroyed.
struct Error {
  headrace_error* error = nullptr;
  ~Error() {
    if (error != nullptr && headrace_error_get_code(error) == HEADRACE_OK) std::abort();
    headrace_error_get_message(error);
    headrace_error_get_place(error);
    headrace_error_destroy(error);
  }
  operator headrace_error**() { return &error; }  // NOLINT
};

struct World {
  Slots<headrace_model, headrace_model_destroy> models;
  Slots<headrace_options, headrace_options_destroy> options;
  Slots<headrace_kv_cache, headrace_kv_cache_destroy> caches;
  Slots<headrace_session, headrace_session_destroy> sessions;
  Slots<headrace_request, headrace_request_destroy> requests;
  Slots<headrace_scheduler, headrace_scheduler_destroy> schedulers;
  Slots<headrace_event, headrace_event_destroy> events;
  Slots<headrace_tokenizer, headrace_tokenizer_destroy> tokenizers;
  Slots<headrace_detokenizer, headrace_detokenizer_destroy> detokenizers;
  Slots<headrace_chat_template, headrace_chat_template_destroy> templates;
  Slots<headrace_prompt, headrace_prompt_destroy> prompts;
  std::string saved;  // the last session that was saved
};

// The options of a tiny machine: one thread, and a cache that is soon full.
headrace_options* small_options(Input& in);

// Calls on models, sources, options, caches and saved sessions; see capi_fuzz_models.cpp.
void load_text_model(Input& in, World& world);
void load_by_path(Input& in, World& world);
void set_known_option(Input& in, World& world);
void create_with_options(Input& in, World& world);
void describe_model(Input& in, World& world);
void describe_library(Input& in, World& world);
void save_session(Input& in, World& world);
void restore_session(Input& in, World& world);
void read_stats(Input& in, World& world);

// Calls on text; see capi_fuzz_text.cpp.
void append_to_session(Input& in, World& world);
void query_tokenizer(Input& in, World& world);
void push_to_detokenizer(Input& in, World& world);
void render_messages(Input& in, World& world);
void read_prompt(Input& in, World& world);
void add_to_request(Input& in, World& world);

}  // namespace capi_fuzz
