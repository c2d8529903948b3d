// What is loaded, opened, described and rendered while allocations fail: each call says so or succeeds, gives all or nothing,
// and succeeds when memory is back.
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "capi/failing_allocations.h"
#include "capi/tiny_model.h"

namespace {

using capi_test::aside;
using capi_test::fail_each_and_all;

// One thread: what another one allocates does not fail here.
headrace::Options one_thread() {
  headrace::Options options;
  options.set("engine.threads", "1");
  return options;
}

// Loads with each allocation failing, `prepare` before each; the error object, where there was memory for one, tells the
// same code.
void fail_loading(
    const std::string& path, const headrace::Options& options = one_thread(),
    const std::function<void()>& prepare = [] {}) {
  fail_each_and_all([&] {
    aside(prepare);
    headrace_model* model = nullptr;
    headrace_error* error = nullptr;
    const headrace_status status =
        headrace_model_load(path.data(), path.size(), options.get(), nullptr, nullptr, &model, &error);
    aside([&] {
      CHECK((model != nullptr) == (status == HEADRACE_OK));
      if (error != nullptr) CHECK(headrace_error_get_code(error) == status);
      if (status == HEADRACE_OK) {
        headrace_model_info info;
        headrace_model_info_init(&info);
        CHECK(headrace_model_get_info(model, &info, nullptr) == HEADRACE_OK);
        CHECK(info.vocab_size == 96);
      }
    });
    headrace_error_destroy(error);
    headrace_model_destroy(model);
    return status;
  });
}

// A source over `bytes`, opened by `open(&source)`, must release exactly once where it was opened and never otherwise.
template <class Open>
void fail_loading_from(const Open& open) {
  const headrace::Options options = one_thread();
  fail_each_and_all([&] {
    int releases = 0;
    headrace_source* source = nullptr;
    headrace_status status = open(&source, &releases);
    const bool opened = status == HEADRACE_OK;
    headrace_model* model = nullptr;
    if (opened) status = headrace_model_load_sources(&source, 1, options.get(), nullptr, nullptr, &model, nullptr);
    headrace_source_destroy(source);
    headrace_model_destroy(model);
    aside([&] {
      CHECK((source != nullptr) == opened);
      CHECK(releases == (opened ? 1 : 0));
    });
    return status;
  });
}

void count_release(void* user) { ++*static_cast<int*>(user); }

// A call that fills (buffer, capacity, needed); its text must be the same as with all memory.
template <class Call>
void fail_text(const Call& call) {
  std::vector<char> expected(1 << 16), text(expected.size());
  size_t expected_size = 0;
  REQUIRE(call(expected.data(), expected.size(), &expected_size) == HEADRACE_OK);
  fail_each_and_all([&] {
    size_t needed = 0;
    const headrace_status status = call(text.data(), text.size(), &needed);
    if (status == HEADRACE_OK) {
      aside([&] { CHECK(std::string(text.data(), needed) == std::string(expected.data(), expected_size)); });
    }
    return status;
  });
}

const char* const kGenerationConfig =
    R"({"do_sample":true,"temperature":0.5,"top_k":7,"eos_token_id":[1,4],"nested":{"a":[1,{"b":[[]]}]}})";

}  // namespace

TEST_CASE("a model from a GGUF file survives each allocation that fails") { fail_loading(capi_test::tiny_path()); }

TEST_CASE("a model from a folder survives each allocation that fails") {
  const capi_test::TemporaryFolder folder;
  capi_test::write_text_model(folder, kGenerationConfig);
  fail_loading(folder.path());
}

TEST_CASE("a model with packed weights in a file survives each allocation that fails") {
  const capi_test::TemporaryFolder folder;
  const std::string cache = folder / "packed";
  headrace::Options options = one_thread();
  options.set("model.packed_cache", cache);
  headrace::Model::load(capi_test::tiny_path(), options);
  const std::string whole = capi_test::read_file(cache);
  REQUIRE(!whole.empty());
  fail_loading(capi_test::tiny_path(), options);  // mapped
  fail_loading(capi_test::tiny_path(), options, [&] { std::filesystem::remove(cache); });
  headrace::Model::load(capi_test::tiny_path(), options);
  CHECK(capi_test::read_file(cache) == whole);
  // What was being written when an allocation failed is gone.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a model from memory survives each allocation that fails, and the memory is released once") {
  const std::string bytes = capi_test::read_file(capi_test::tiny_path());
  fail_loading_from([&](headrace_source** source, int* releases) {
    return headrace_source_open_memory(bytes.data(), bytes.size(), count_release, releases, source, nullptr);
  });
}

TEST_CASE("a model from a reader survives each allocation that fails, and the reader is released once") {
  static const std::string bytes = capi_test::read_file(capi_test::tiny_path());
  const auto read = [](void*, uint64_t offset, void* destination, uint64_t size) -> int32_t {
    if (offset > bytes.size() || size > bytes.size() - offset) return 1;
    std::memcpy(destination, bytes.data() + offset, size);
    return 0;
  };
  fail_loading_from([&](headrace_source** source, int* releases) {
    return headrace_source_open_reader(bytes.size(), read, count_release, releases, source, nullptr);
  });
}

TEST_CASE("descriptions and recommendations survive each allocation that fails") {
  const capi_test::TemporaryFolder folder;
  capi_test::write_text_model(folder, kGenerationConfig);
  const headrace::Options options = one_thread();
  const headrace::Model model = headrace::Model::load(folder.path(), options);
  fail_text([&](char* buffer, size_t capacity, size_t* needed) {
    return headrace_model_describe(model.get(), buffer, capacity, needed, nullptr);
  });
  headrace::Options traced = one_thread();
  traced.set("engine.profile", "trace");
  const headrace::Model profiled = headrace::Model::load(folder.path(), traced);
  headrace::Session(profiled, traced).evaluate({1, 2, 3});
  fail_text([&](char* buffer, size_t capacity, size_t* needed) {
    return headrace_model_describe_profile(profiled.get(), buffer, capacity, needed, nullptr);
  });
  fail_text([&](char* buffer, size_t capacity, size_t* needed) {
    return headrace_model_describe_trace(profiled.get(), buffer, capacity, needed, nullptr);
  });
  for (const std::string& path : {folder.path(), capi_test::tiny_path()}) {
    fail_text([&](char* buffer, size_t capacity, size_t* needed) {
      return headrace_model_inspect(path.data(), path.size(), 1 << 30, buffer, capacity, needed, nullptr);
    });
  }
  fail_text([](char* buffer, size_t capacity, size_t* needed) {
    return headrace_system_describe(buffer, capacity, needed, nullptr);
  });
  for (size_t i = 0; i < headrace_options_get_count(); ++i) {
    fail_text([&](char* buffer, size_t capacity, size_t* needed) {
      return headrace_options_get_info(i, buffer, capacity, needed, nullptr);
    });
  }
  fail_each_and_all([&] {
    headrace_sampling sampling;
    headrace_sampling_init(&sampling);
    const headrace_status status = headrace_model_get_sampling(model.get(), &sampling, nullptr);
    if (status == HEADRACE_OK) aside([&] { CHECK(sampling.top_k == 7); });
    return status;
  });
}

TEST_CASE("tuning survives each allocation that fails") {
  headrace::Options options = one_thread();
  options.set("engine.tuning", "off");
  const headrace::Model model = capi_test::load_quantized(options);
  // One product is measured, then the time is over.
  capi_test::fail_each([&] {
    headrace_tuning* tuning = nullptr;
    const headrace_status status =
        headrace_tuning_create(model.get(), 1e-5, nullptr, 0, nullptr, nullptr, &tuning, nullptr);
    CHECK((tuning != nullptr) == (status == HEADRACE_OK));
    headrace_tuning_destroy(tuning);
    return status;
  });
  std::string table;
  aside([&] { table = model.tune(1e-5); });
  fail_each_and_all([&] {
    headrace_tuning* tuning = nullptr;
    const headrace_status status =
        headrace_tuning_create(model.get(), 1e-9, table.data(), table.size(), nullptr, nullptr, &tuning, nullptr);
    headrace_tuning_destroy(tuning);
    return status;
  });
}

TEST_CASE("tokenizers survive each allocation that fails") {
  const std::string text = "Hello caf\u00E9, 123 na\u00EFve  words\n\u4E16\u754C";
  for (const char* name :
       {"bert_uncased", "gpt2", "llama2_spm_bpe", "llama3", "mistral_metaspace_bpe", "qwen2", "t5_unigram"}) {
    INFO(name);
    const std::string path = std::string(HEADRACE_SOURCE_DIR "/tests/data/tokenizers/") + name;
    std::vector<int32_t> expected;
    fail_each_and_all([&] {
      headrace_tokenizer* tokenizer = nullptr;
      const headrace_status status = headrace_tokenizer_load(path.data(), path.size(), &tokenizer, nullptr);
      aside([&] {
        CHECK((tokenizer != nullptr) == (status == HEADRACE_OK));
        if (tokenizer == nullptr) return;
        std::vector<int32_t> ids(256);
        size_t needed = 0;
        REQUIRE(headrace_tokenizer_encode(tokenizer, text.data(), text.size(), 0, ids.data(), ids.size(), &needed,
                                          nullptr) == HEADRACE_OK);
        ids.resize(needed);
        if (expected.empty()) expected = ids;
        CHECK(ids == expected);
      });
      headrace_tokenizer_destroy(tokenizer);
      return status;
    });
    headrace_tokenizer* tokenizer = nullptr;
    REQUIRE(headrace_tokenizer_load(path.data(), path.size(), &tokenizer, nullptr) == HEADRACE_OK);
    fail_each_and_all([&] {
      int32_t ids[256];
      size_t needed = 0;
      return headrace_tokenizer_encode(tokenizer, text.data(), text.size(),
                                       HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL, ids, 256, &needed, nullptr);
    });
    fail_each_and_all([&] {
      headrace_detokenizer* detokenizer = nullptr;
      headrace_status status = headrace_detokenizer_create(tokenizer, 0, &detokenizer, nullptr);
      const char* piece = nullptr;
      size_t size = 0;
      for (size_t i = 0; i < expected.size() && status == HEADRACE_OK; ++i) {
        status = headrace_detokenizer_push(detokenizer, expected[i], &piece, &size, nullptr);
      }
      if (status == HEADRACE_OK) status = headrace_detokenizer_flush(detokenizer, &piece, &size, nullptr);
      headrace_detokenizer_destroy(detokenizer);
      return status;
    });
    headrace_tokenizer_destroy(tokenizer);
  }
}

TEST_CASE("chat templates survive each allocation that fails") {
  const std::string source =
      "{{ bos_token }}{% macro show(x) %}[{{ x | tojson }}]{% endmacro %}{% for m in messages %}{{ m.role ~ ': ' }}"
      "{{ m.content | trim }}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ show(c.function.arguments) "
      "}}"
      "{% endfor %}{% endif %}{% endfor %}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}"
      "{{ options.deep | selectattr('on') | list | length }}{{ namespace(a=1).a }}{{ 'x,y'.split(',') | join('-') }}";
  const std::string special = R"({"bos_token":"<s>","eos_token":"</s>"})";
  const std::string messages =
      R"([{"role":"user","content":" hi "},{"role":"assistant","content":"","tool_calls":[{"function":)"
      R"({"name":"f","arguments":{"city":"Paris","list":[1,2.5,{"a":null}],"deep":{"x":{"y":[[]]}}}}}]}])";
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"city":{"type":"string"},)"
      R"("list":{"type":"array","items":{"type":"number"}},"deep":{"type":"object"}},"required":["city"]}}}])";
  const std::string variables = R"({"options":{"deep":[{"on":true},{"on":false},{"on":true}]},"flag":false})";
  fail_each_and_all([&] {
    headrace_chat_template* chat_template = nullptr;
    const headrace_status status = headrace_chat_template_create(source.data(), source.size(), special.data(),
                                                                 special.size(), &chat_template, nullptr);
    headrace_chat_template_destroy(chat_template);
    return status;
  });
  headrace_chat_template* chat_template = nullptr;
  REQUIRE(headrace_chat_template_create(source.data(), source.size(), special.data(), special.size(), &chat_template,
                                        nullptr) == HEADRACE_OK);
  std::string expected;
  fail_each_and_all([&] {
    headrace_prompt* prompt = nullptr;
    headrace_error* error = nullptr;
    const headrace_status status =
        headrace_chat_template_render(chat_template, messages.data(), messages.size(), tools.data(), tools.size(),
                                      variables.data(), variables.size(), 1, 0, &prompt, &error);
    aside([&] {
      CHECK((prompt != nullptr) == (status == HEADRACE_OK));
      if (prompt == nullptr) return;
      size_t size = 0;
      const std::string text = headrace_prompt_get_text(prompt, &size);
      if (expected.empty()) expected = text;
      CHECK(text == expected);
    });
    headrace_prompt_destroy(prompt);
    headrace_error_destroy(error);
    return status;
  });
  headrace_chat_template_destroy(chat_template);

  const capi_test::TemporaryFolder folder;
  capi_test::write_text_model(folder);
  const std::string path = folder.path();
  fail_each_and_all([&] {
    headrace_chat_template* loaded = nullptr;
    const headrace_status status = headrace_chat_template_load(path.data(), path.size(), &loaded, nullptr);
    headrace_chat_template_destroy(loaded);
    return status;
  });
  // A JSON text that breaks off: the half-read tree goes, and the error is that of the text or of the memory.
  const std::string broken = messages.substr(0, messages.size() - 9);
  const headrace::Model& model = capi_test::text_model();
  for (const std::string* given : {&messages, &broken}) {
    bool broken_seen = false;
    fail_each_and_all([&] {
      headrace_request* request = nullptr;
      headrace_status status = headrace_request_create(model.get(), &request, nullptr);
      if (status == HEADRACE_OK) {
        status = headrace_request_add_messages(request, given->data(), given->size(), tools.data(), tools.size(),
                                               variables.data(), variables.size(), nullptr);
      }
      headrace_request_destroy(request);
      if (given == &broken && status == HEADRACE_MALFORMED) {
        broken_seen = true;
        return HEADRACE_OK;
      }
      return status;
    });
    CHECK(broken_seen == (given == &broken));
  }
}

TEST_CASE("options, caches, sessions and prompts survive each allocation that fails") {
  const headrace::Model& model = capi_test::text_model();
  for (const std::string dtype : {"f32", "f16", "bf16", "q8"}) {
    fail_each_and_all([&] {
      const auto set = [](headrace_options* options, const std::string& key, const std::string& value) {
        return headrace_options_set(options, key.data(), key.size(), value.data(), value.size(), nullptr);
      };
      headrace_options* options = nullptr;
      headrace_status status = headrace_options_create(&options, nullptr);
      if (status == HEADRACE_OK) status = set(options, "kv.dtype", dtype);
      if (status == HEADRACE_OK) status = set(options, "kv.max_tokens", "64");
      headrace_kv_cache* cache = nullptr;
      headrace_session* session = nullptr;
      headrace_session* forked = nullptr;
      headrace_scheduler* scheduler = nullptr;
      const int32_t tokens[] = {1, 2, 3};
      if (status == HEADRACE_OK) status = headrace_kv_cache_create(model.get(), options, &cache, nullptr);
      if (status == HEADRACE_OK) status = headrace_session_create(model.get(), cache, options, &session, nullptr);
      if (status == HEADRACE_OK) status = headrace_session_append_tokens(session, tokens, 3, nullptr);
      if (status == HEADRACE_OK) status = headrace_session_append_text(session, "abc", 3, 0, nullptr);
      if (status == HEADRACE_OK) status = headrace_session_fork(session, &forked, nullptr);
      if (status == HEADRACE_OK) status = headrace_scheduler_create(model.get(), cache, options, &scheduler, nullptr);
      headrace_scheduler_destroy(scheduler);
      headrace_session_destroy(forked);
      headrace_session_destroy(session);
      headrace_kv_cache_destroy(cache);
      headrace_options_destroy(options);
      return status;
    });
  }
}

TEST_CASE("a session restored from memory or a reader is whole or not there, whichever allocation fails") {
  const headrace::Model& model = capi_test::text_model();
  const headrace::KVCache cache(model);
  const capi_test::TemporaryFolder folder;
  const std::string path = folder / "session";
  {
    headrace::Session session(model, cache);
    const std::vector<int32_t> tokens(20, 9);
    REQUIRE(headrace_session_evaluate(session.get(), tokens.data(), tokens.size(), nullptr, 0, nullptr, nullptr) ==
            HEADRACE_OK);
    REQUIRE(headrace_session_save(session.get(), path.data(), path.size(), nullptr) == HEADRACE_OK);
  }
  static std::string bytes;
  bytes = capi_test::read_file(path);
  const auto read = [](void*, uint64_t offset, void* destination, uint64_t size) -> int32_t {
    if (offset > bytes.size() || size > bytes.size() - offset) return 1;
    std::memcpy(destination, bytes.data() + offset, size);
    return 0;
  };
  const int64_t free_blocks = cache.stats().free_blocks;
  for (const bool from_memory : {true, false}) {
    fail_each_and_all([&] {
      int releases = 0;
      headrace_source* source = nullptr;
      headrace_status status =
          from_memory
              ? headrace_source_open_memory(bytes.data(), bytes.size(), count_release, &releases, &source, nullptr)
              : headrace_source_open_reader(bytes.size(), read, count_release, &releases, &source, nullptr);
      headrace_session* session = nullptr;
      if (status == HEADRACE_OK) {
        status = headrace_session_restore(model.get(), cache.get(), nullptr, source, &session, nullptr);
      }
      headrace_source_destroy(source);
      aside([&] {
        CHECK((session != nullptr) == (status == HEADRACE_OK));
        CHECK(releases == (source != nullptr ? 1 : 0));
        headrace_session_destroy(session);
        CHECK(cache.stats().free_blocks == free_blocks);
      });
      return status;
    });
  }
}
