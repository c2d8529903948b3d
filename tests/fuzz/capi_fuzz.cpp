// The input is a program: each byte chooses a call of the C ABI, the following ones its arguments. Handles are made, used
// and destroyed in any order, with bad arguments among them; only undefined behaviour, leaks and hangs are failures.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <headrace/headrace.h>

namespace {

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

const std::string& model_bytes() {
  static const std::string bytes = [] {
    std::ifstream file(HEADRACE_FUZZ_MODEL, std::ios::binary);
    std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (all.empty()) std::abort();  // the fuzzer itself is broken
    return all;
  }();
  return bytes;
}

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
};

// The options of a tiny machine: one thread, and a cache that is soon full.
headrace_options* small_options(Input& in) {
  headrace_options* options = nullptr;
  headrace_options_create(&options, nullptr);
  const auto set = [&](const std::string& key, const std::string& value) {
    headrace_options_set(options, key.data(), key.size(), value.data(), value.size(), nullptr);
  };
  set("engine.threads", "1");
  set("kv.max_tokens", std::to_string(16 + in.byte() % 128));
  if (in.byte() % 2 != 0) set("kv.prefix_index", "false");
  if (in.byte() % 4 == 0) set("scheduler.max_num_batched_tokens", std::to_string(1 + in.byte() % 32));
  if (in.byte() % 4 == 0) set("scheduler.max_queue", "1");
  return options;
}

void load_model(Input& in, World& world) {
  Error error;
  headrace_source* source = nullptr;
  const size_t size = in.byte() % 8 == 0 ? in.word() % (model_bytes().size() + 1) : model_bytes().size();
  if (headrace_source_open_memory(model_bytes().data(), size, nullptr, nullptr, &source, nullptr) != HEADRACE_OK)
    return;
  headrace_options* options = small_options(in);
  double limit = in.byte() / 200.0;
  headrace_model* model = nullptr;
  headrace_model_load_sources(
      &source, 1, options, [](void* user, double at) -> int32_t { return at > *static_cast<double*>(user); }, &limit,
      &model, error);
  headrace_options_destroy(options);
  headrace_source_destroy(source);
  world.models.put(in, model);
}

void sampling(Input& in, headrace_request* request) {
  Error error;
  headrace_sampling values;
  headrace_sampling_init(&values);
  values.temperature = in.small() / 32.0f;
  values.top_k = in.small();
  values.top_p = in.byte() / 250.0f;
  values.min_p = in.byte() / 1000.0f;
  values.repetition_penalty = in.byte() / 100.0f;
  values.frequency_penalty = in.small() / 60.0f;
  values.n = in.byte() % 5;
  values.seed = in.byte();
  values.has_seed = in.byte() % 3;
  values.num_logprobs = in.byte() % 4 - 1;
  values.num_prompt_logprobs = in.byte() % 4 - 1;
  if (in.byte() == 255) values.struct_size = in.word() % sizeof values;
  headrace_request_set_sampling(request, &values, error);
}

void read_event(Input& in, World& world) {
  Error error;
  headrace_event* event = nullptr;
  headrace_event_next(world.schedulers.get(in), &event, error);
  size_t count = 0;
  headrace_event_get_text(event, &count);
  headrace_event_get_tokens(event, &count);
  headrace_event_get_logprobs(event, &count);
  const int32_t* ids = nullptr;
  const float* logprobs = nullptr;
  Error top_error;
  headrace_event_get_top_logprobs(event, in.byte() % 3, &ids, &logprobs, &count, top_error);
  headrace_event_get_finish_reason(event);
  headrace_event_get_message(event);
  headrace_usage usage;
  headrace_usage_init(&usage);
  Error usage_error;
  headrace_event_get_usage(event, &usage, usage_error);
  world.events.put(in, event);
}

void evaluate(Input& in, headrace_session* session) {
  Error error;
  const std::vector<int32_t> tokens = in.tokens();
  std::vector<float> logits(tokens.size() * 96);
  size_t needed = 0;
  if (in.byte() % 2 != 0) {
    headrace_session_evaluate(session, tokens.data(), tokens.size(), nullptr, 0, nullptr, error);
  } else {
    headrace_session_evaluate(session, tokens.data(), tokens.size(), logits.data(), logits.size(), &needed, error);
  }
}

void call(Input& in, World& world) {
  Error error;
  switch (in.byte() % 34) {
    case 0: return load_model(in, world);
    case 1: return world.options.put(in, small_options(in));
    case 2: {
      const std::string key = in.text(), value = in.text();
      headrace_options_set(world.options.get(in), key.data(), key.size(), value.data(), value.size(), error);
      return;
    }
    case 3: {
      headrace_kv_cache* cache = nullptr;
      headrace_options* options = small_options(in);
      headrace_kv_cache_create(world.models.get(in), options, &cache, error);
      headrace_options_destroy(options);
      return world.caches.put(in, cache);
    }
    case 4: {
      headrace_session* session = nullptr;
      headrace_options* options = small_options(in);
      headrace_session_create(world.models.get(in), world.caches.get(in), options, &session, error);
      headrace_options_destroy(options);
      return world.sessions.put(in, session);
    }
    case 5: {
      headrace_scheduler* scheduler = nullptr;
      headrace_options* options = small_options(in);
      headrace_scheduler_create(world.models.get(in), world.caches.get(in), options, &scheduler, error);
      headrace_options_destroy(options);
      return world.schedulers.put(in, scheduler);
    }
    case 6: {
      headrace_request* request = nullptr;
      headrace_request_create(world.models.get(in), &request, error);
      // A length, so that a run of the fuzzer ends soon.
      headrace_request_set_length(request, 0, 1 + in.byte() % 16, nullptr);
      return world.requests.put(in, request);
    }
    case 7: {
      const std::vector<int32_t> tokens = in.tokens();
      headrace_request_add_tokens(world.requests.get(in), tokens.data(), tokens.size(), error);
      return;
    }
    case 8: return sampling(in, world.requests.get(in));
    case 9: {
      headrace_request* request = world.requests.get(in);
      headrace_request_set_session(request, world.sessions.get(in), error);
      return;
    }
    case 10: {
      headrace_request* request = world.requests.get(in);
      const int32_t token = in.token();
      headrace_request_add_logit_bias(request, token, static_cast<float>(in.small()), error);
      return;
    }
    case 11: {
      const std::string stop = in.text();
      headrace_request_add_stop_string(world.requests.get(in), stop.data(), stop.size(), error);
      return;
    }
    case 12: headrace_request_set_length(world.requests.get(in), in.small(), in.small() % 32, error); return;
    case 13: headrace_request_set_deadline(world.requests.get(in), in.small(), error); return;
    case 14: headrace_request_set_priority(world.requests.get(in), in.small(), error); return;
    case 15: {
      const std::string salt = in.text();
      headrace_request_set_cache_salt(world.requests.get(in), salt.data(), salt.size(), error);
      return;
    }
    case 16:
    case 17: {
      uint64_t id = 0;
      headrace_scheduler* scheduler = world.schedulers.get(in);
      headrace_scheduler_submit(scheduler, world.requests.get(in), &id, error);
      return;
    }
    case 18: headrace_scheduler_cancel(world.schedulers.get(in), in.byte() % 8, error); return;
    case 19:
    case 20:
    case 21: {
      int32_t has_work = 0;
      headrace_scheduler_step(world.schedulers.get(in), &has_work, error);
      return;
    }
    case 22: return read_event(in, world);
    case 23: return evaluate(in, world.sessions.get(in));
    case 24: {
      const std::vector<int32_t> tokens = in.tokens();
      headrace_session_append_tokens(world.sessions.get(in), tokens.data(), tokens.size(), error);
      return;
    }
    case 25: {
      headrace_session* forked = nullptr;
      headrace_session_fork(world.sessions.get(in), &forked, error);
      return world.sessions.put(in, forked);
    }
    case 26: headrace_session_rewind(world.sessions.get(in), in.byte(), error); return;
    case 27: headrace_kv_cache_clear(world.caches.get(in), error); return;
    case 28: {
      headrace_tokenizer* tokenizer = nullptr;
      headrace_tokenizer_open(world.models.get(in), &tokenizer, error);
      return world.tokenizers.put(in, tokenizer);
    }
    case 29: {
      const std::string text = in.text();
      int32_t ids[16];
      size_t needed = 0;
      headrace_tokenizer_encode(world.tokenizers.get(in), text.data(), text.size(), in.byte() % 5, ids, in.byte() % 17,
                                &needed, error);
      return;
    }
    case 30: {
      headrace_detokenizer* detokenizer = nullptr;
      headrace_detokenizer_create(world.tokenizers.get(in), in.byte() % 6, &detokenizer, error);
      const char* text = nullptr;
      size_t size = 0;
      headrace_detokenizer_push(detokenizer, in.token(), &text, &size, nullptr);
      return world.detokenizers.put(in, detokenizer);
    }
    case 31: {
      const std::string source = "{% for m in messages %}" + in.text() + "{{ m.content }}{% endfor %}";
      headrace_chat_template* made = nullptr;
      headrace_chat_template_create(source.data(), source.size(), "", 0, &made, error);
      headrace_prompt* prompt = nullptr;
      const std::string messages = R"([{"role": "user", "content": "hi"}])";
      headrace_chat_template_render(made, messages.data(), messages.size(), nullptr, 0, nullptr, 0, 1, 0, &prompt,
                                    nullptr);
      world.templates.put(in, made);
      return world.prompts.put(in, prompt);
    }
    case 32: headrace_request_add_prompt(world.requests.get(in), world.prompts.get(in), error); return;
    default:
      switch (in.byte() % 8) {
        case 0: return world.models.destroy(in);
        case 1: return world.caches.destroy(in);
        case 2: return world.sessions.destroy(in);
        case 3: return world.requests.destroy(in);
        case 4: return world.schedulers.destroy(in);
        case 5: return world.events.destroy(in);
        case 6: return world.tokenizers.destroy(in);
        default: return world.options.destroy(in);
      }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  World world;
  for (int calls = 0; calls < 200 && !in.empty(); ++calls) call(in, world);
  return 0;
}
