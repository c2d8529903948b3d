// The C ABI's conventions: sources and their release, NULL arguments, struct sizes, options, orders of destruction.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.h>

namespace {

const std::string kModelPath = HEADRACE_SOURCE_DIR "/tests/data/goldens/llama/model.gguf";

std::string model_bytes() {
  std::ifstream file(kModelPath, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

headrace_model* load_model() {
  headrace_model* model = nullptr;
  REQUIRE(headrace_model_load(kModelPath.data(), kModelPath.size(), nullptr, nullptr, nullptr, &model, nullptr) ==
          HEADRACE_OK);
  return model;
}

void count_release(void* user) { ++*static_cast<int*>(user); }

struct Reader {
  std::string bytes;
  bool fails = false;
  int releases = 0;
};

int32_t read_some(void* user, uint64_t offset, void* destination, uint64_t size) {
  const auto* reader = static_cast<const Reader*>(user);
  if (reader->fails || offset + size > reader->bytes.size()) return 1;
  std::memcpy(destination, reader->bytes.data() + offset, size);
  return 0;
}

}  // namespace

TEST_CASE("sources release what the host gave once, and not when opening fails") {
  headrace_source* source = nullptr;
  headrace_model* model = nullptr;
  SECTION("memory") {
    int releases = 0;
    const std::string bytes = model_bytes();
    REQUIRE(headrace_source_open_memory(bytes.data(), bytes.size(), count_release, &releases, &source, nullptr) ==
            HEADRACE_OK);
    CHECK(headrace_model_load_sources(&source, 1, nullptr, nullptr, nullptr, &model, nullptr) == HEADRACE_OK);
    headrace_source_destroy(source);
    headrace_model_destroy(model);
    CHECK(releases == 1);
  }
  SECTION("a reader that works, and one that fails") {
    for (const bool fails : {false, true}) {
      Reader reader{model_bytes(), fails, 0};
      REQUIRE(headrace_source_open_reader(
                  reader.bytes.size(), read_some, [](void* user) { ++static_cast<Reader*>(user)->releases; }, &reader,
                  &source, nullptr) == HEADRACE_OK);
      headrace_error* error = nullptr;
      model = nullptr;
      CHECK(headrace_model_load_sources(&source, 1, nullptr, nullptr, nullptr, &model, &error) ==
            (fails ? HEADRACE_IO_ERROR : HEADRACE_OK));
      CHECK((error != nullptr) == fails);
      headrace_error_destroy(error);
      headrace_source_destroy(source);
      headrace_model_destroy(model);
      CHECK(reader.releases == 1);
    }
  }
  SECTION("a call that fails") {
    int releases = 0;
    CHECK(headrace_source_open_descriptor(-1, count_release, &releases, &source, nullptr) != HEADRACE_OK);
    CHECK(headrace_source_open_reader(4, nullptr, count_release, &releases, &source, nullptr) ==
          HEADRACE_INVALID_ARGUMENT);
    CHECK(releases == 0);
  }
}

TEST_CASE("a load can be cancelled anywhere") {
  for (double limit : {-1.0, 0.0, 0.3, 0.7}) {
    headrace_model* model = nullptr;
    const auto progress = [](void* user, double fraction) -> int32_t { return fraction > *static_cast<double*>(user); };
    CHECK(headrace_model_load(kModelPath.data(), kModelPath.size(), nullptr, progress, &limit, &model, nullptr) ==
          HEADRACE_CANCELLED);
    CHECK(model == nullptr);
  }
}

TEST_CASE("struct sizes that were never set are refused and steer no reading") {
  headrace_model* model = load_model();
  for (const uint32_t size : {0u, 4u, 0xffffffffu, 100000u}) {
    headrace_model_info info;
    headrace_model_info_init(&info);
    info.struct_size = size;
    headrace_error* error = nullptr;
    CHECK(headrace_model_get_info(model, &info, &error) == HEADRACE_INVALID_ARGUMENT);
    CHECK(std::string(headrace_error_get_place(error)) == "info.struct_size");
    headrace_error_destroy(error);
  }
  headrace_model_destroy(model);
}

TEST_CASE("NULL arguments are refused by name, and getters give neutral values") {
  headrace_error* error = nullptr;
  CHECK(headrace_model_load_sources(nullptr, 0, nullptr, nullptr, nullptr, nullptr, &error) ==
        HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "model");
  headrace_error_destroy(error);
  CHECK(headrace_session_create(nullptr, nullptr, nullptr, nullptr, &error) == HEADRACE_INVALID_ARGUMENT);
  headrace_error_destroy(error);
  CHECK(headrace_scheduler_step(nullptr, nullptr, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_request_set_sampling(nullptr, nullptr, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_session_evaluate(nullptr, nullptr, 0, nullptr, 0, nullptr, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_tokenizer_get_bos(nullptr) == -1);
  CHECK(headrace_event_get_type(nullptr) == 0);
  CHECK(std::string(headrace_event_get_text(nullptr, nullptr)).empty());
  CHECK(headrace_prompt_get_span_count(nullptr) == 0);
  headrace_model_destroy(nullptr);
  headrace_scheduler_destroy(nullptr);
}

TEST_CASE("a slip in an option's key is refused, naming it") {
  headrace_options* options = nullptr;
  REQUIRE(headrace_options_create(&options, nullptr) == HEADRACE_OK);
  headrace_error* error = nullptr;
  CHECK(headrace_options_set(options, "engine.thread", 13, "1", 1, &error) == HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "engine.thread");
  headrace_error_destroy(error);
  headrace_options_destroy(options);
}

TEST_CASE("handles are destroyed in any order while a request runs") {
  std::array<int, 5> order = {0, 1, 2, 3, 4};
  do {
    headrace_model* model = load_model();
    headrace_kv_cache* cache = nullptr;
    headrace_session* session = nullptr;
    headrace_request* request = nullptr;
    headrace_scheduler* scheduler = nullptr;
    REQUIRE(headrace_kv_cache_create(model, nullptr, &cache, nullptr) == HEADRACE_OK);
    REQUIRE(headrace_session_create(model, cache, nullptr, &session, nullptr) == HEADRACE_OK);
    REQUIRE(headrace_scheduler_create(model, cache, nullptr, &scheduler, nullptr) == HEADRACE_OK);
    REQUIRE(headrace_request_create(model, &request, nullptr) == HEADRACE_OK);
    const int32_t tokens[] = {3, 4, 5};
    REQUIRE(headrace_request_add_tokens(request, tokens, 3, nullptr) == HEADRACE_OK);
    REQUIRE(headrace_request_set_session(request, session, nullptr) == HEADRACE_OK);
    uint64_t id = 0;
    REQUIRE(headrace_scheduler_submit(scheduler, request, &id, nullptr) == HEADRACE_OK);
    int32_t has_work = 0;
    REQUIRE(headrace_scheduler_step(scheduler, &has_work, nullptr) == HEADRACE_OK);
    for (const int which : order) {
      if (which == 0) headrace_model_destroy(model);
      if (which == 1) headrace_kv_cache_destroy(cache);
      if (which == 2) headrace_session_destroy(session);
      if (which == 3) headrace_request_destroy(request);
      if (which == 4) headrace_scheduler_destroy(scheduler);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}
