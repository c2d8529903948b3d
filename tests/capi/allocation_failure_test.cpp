// Every allocation that a call makes fails once: the call says so or succeeds, and the objects work afterwards.
#include <cstdlib>
#include <new>
#include <string>

#include <catch2/catch.hpp>

#include <headrace/headrace.h>

namespace {

thread_local int64_t allocations_left = -1;  // the one at 0 fails; -1: none

void* allocate(std::size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}

const std::string kModelPath = HEADRACE_SOURCE_DIR "/tests/data/goldens/llama/model.gguf";

// Calls until no allocation is left to fail; every other outcome is an error.
template <class Call>
void fail_each(const Call& call) {
  for (int64_t k = 0; k < 20000; ++k) {
    allocations_left = k;
    const headrace_status status = call();
    const bool failed_one = allocations_left < 0;
    allocations_left = -1;
    INFO("allocation " << k << " gave " << headrace_status_get_name(status));
    if (!failed_one) {
      REQUIRE(status == HEADRACE_OK);
      return;
    }
    REQUIRE((status == HEADRACE_OK || status == HEADRACE_OUT_OF_MEMORY));
  }
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("sessions and schedulers survive each allocation that fails") {
  headrace_model* model = nullptr;
  REQUIRE(headrace_model_load(kModelPath.data(), kModelPath.size(), nullptr, nullptr, nullptr, &model, nullptr) == HEADRACE_OK);
  headrace_session* session = nullptr;
  REQUIRE(headrace_session_create(model, nullptr, nullptr, &session, nullptr) == HEADRACE_OK);
  const int32_t tokens[] = {3, 4, 5, 6};
  fail_each([&] {
    size_t before = 0, after = 0;
    int32_t held[256];
    const int64_t left = allocations_left;
    allocations_left = -1;
    REQUIRE(headrace_session_rewind(session, 0, nullptr) == HEADRACE_OK);
    allocations_left = left;
    headrace_error* error = nullptr;
    const headrace_status status = headrace_session_evaluate(session, tokens, 4, nullptr, 0, nullptr, &error);
    headrace_error_destroy(error);
    const int64_t rest = allocations_left;
    allocations_left = -1;
    REQUIRE(headrace_session_get_tokens(session, held, 256, &after, nullptr) == HEADRACE_OK);
    REQUIRE(after == (status == HEADRACE_OK ? 4 : before));
    allocations_left = rest;
    return status;
  });
  headrace_session_destroy(session);
  headrace_model_destroy(model);
}
