// The input is a program: each byte chooses a call of the C ABI, the following ones its arguments. Handles are made, used
// and destroyed in any order, with bad arguments among them; only undefined behaviour, leaks and hangs are failures.
#include "capi_fuzz_world.h"

namespace capi_fuzz {
namespace {

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
  headrace_event_get_type(event);
  headrace_event_get_request_id(event);
  headrace_event_get_index(event);
  headrace_event_get_is_last(event);
  headrace_event_get_finish_reason(event);
  headrace_event_get_status(event);
  headrace_event_get_message(event);
  headrace_event_get_place(event);
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
  switch (in.byte() % 64) {
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
      headrace_request_add_tokens(world.requests.get(in), tokens.data(), tokens.size(), nullptr);
      const float pixels[] = {0.0f, 1.0f};
      const uint8_t rgb[12] = {};
      headrace_request_add_image(world.requests.get(in), rgb, in.byte() % 13, in.byte(), in.byte(), nullptr);
      headrace_request_add_image_pixels(world.requests.get(in), pixels, in.byte() % 3, in.byte(), in.byte(), nullptr);
      headrace_request_set_encoder_tokens(world.requests.get(in), tokens.data(), tokens.size(), nullptr);
      headrace_request_set_audio(world.requests.get(in), pixels, in.byte() % 3, 16000, nullptr);
      headrace_request_set_audio_features(world.requests.get(in), pixels, in.byte() % 3, in.byte(), in.byte(), error);
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
      const auto set = salt.size() % 2 == 0 ? headrace_request_set_cache_salt : headrace_request_set_tenant;
      set(world.requests.get(in), salt.data(), salt.size(), error);
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
    case 33:
      switch (in.byte() % 10) {
        case 0: return world.models.destroy(in);
        case 1: return world.caches.destroy(in);
        case 2: return world.sessions.destroy(in);
        case 3: return world.requests.destroy(in);
        case 4: return world.schedulers.destroy(in);
        case 5: return world.events.destroy(in);
        case 6: return world.tokenizers.destroy(in);
        case 7: return world.options.destroy(in);
        case 8: return world.detokenizers.destroy(in);
        default: return world.templates.destroy(in);
      }
    case 34:
    case 35: return load_text_model(in, world);
    case 36: return load_by_path(in, world);
    case 37:
    case 38: return set_known_option(in, world);
    case 39:
    case 40: return create_with_options(in, world);
    case 41: return describe_model(in, world);
    case 42: return describe_library(in, world);
    case 43:
    case 44: return save_session(in, world);
    case 45:
    case 46: return restore_session(in, world);
    case 47: return read_stats(in, world);
    case 48:
    case 49: return append_to_session(in, world);
    case 50: return query_tokenizer(in, world);
    case 51: return push_to_detokenizer(in, world);
    case 52:
    case 53: return render_messages(in, world);
    case 54: return read_prompt(in, world);
    case 55:
    case 56: return add_to_request(in, world);
    case 57:
    case 58: return read_event(in, world);
    default: {  // what most of a program does
      int32_t has_work = 0;
      headrace_scheduler_step(world.schedulers.get(in), &has_work, error);
      return;
    }
  }
}

}  // namespace
}  // namespace capi_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  capi_fuzz::Input in(data, size);
  capi_fuzz::World world;
  for (int calls = 0; calls < 200 && !in.empty(); ++calls) capi_fuzz::call(in, world);
  return 0;
}
