// A model is the same wherever its bytes come from.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;

std::vector<float> logits_of(headrace_model* model) {
  headrace_session* session = nullptr;
  REQUIRE(headrace_session_create(model, nullptr, nullptr, &session, nullptr) == HEADRACE_OK);
  std::vector<int32_t> tokens(9);
  std::iota(tokens.begin(), tokens.end(), 7);
  std::vector<float> logits(tokens.size() * 96);
  size_t needed = 0;
  REQUIRE(headrace_session_evaluate(session, tokens.data(), tokens.size(), logits.data(), logits.size(), &needed,
                                    nullptr) == HEADRACE_OK);
  CHECK(needed == logits.size());
  headrace_session_destroy(session);
  return logits;
}

// Loads from the source (which is destroyed first), compares and destroys.
void check_model_from(headrace_source* source, const std::vector<float>& expected) {
  headrace_model* model = nullptr;
  REQUIRE(headrace_model_load_sources(&source, 1, nullptr, nullptr, nullptr, &model, nullptr) == HEADRACE_OK);
  headrace_source_destroy(source);
  CHECK(logits_of(model) == expected);
  headrace_model_destroy(model);
}

void count(void* user) { ++*static_cast<int*>(user); }

int32_t read_bytes(void* user, uint64_t offset, void* destination, uint64_t size) {
  const auto& bytes = *static_cast<const std::string*>(user);
  if (offset > bytes.size() || size > bytes.size() - offset) return 1;
  std::memcpy(destination, bytes.data() + offset, size);
  return 0;
}

}  // namespace

TEST_CASE("path, descriptor, memory and reader give the same model") {
  const std::string path = tiny_path();
  std::string bytes = read_file(path);
  const headrace::Model from_path = load_tiny();
  const std::vector<float> expected = logits_of(from_path.get());
  headrace_source* source = nullptr;

  REQUIRE(headrace_source_open_path(path.data(), path.size(), &source, nullptr) == HEADRACE_OK);
  check_model_from(source, expected);

  const int descriptor = open(path.c_str(), O_RDONLY);
  REQUIRE(descriptor >= 0);
  int releases = 0;
  REQUIRE(headrace_source_open_descriptor(descriptor, count, &releases, &source, nullptr) == HEADRACE_OK);
  check_model_from(source, expected);
  CHECK(releases == 1);
  CHECK(fcntl(descriptor, F_GETFD) >= 0);  // the caller's still
  close(descriptor);

  REQUIRE(headrace_source_open_memory(bytes.data(), bytes.size(), nullptr, nullptr, &source, nullptr) == HEADRACE_OK);
  check_model_from(source, expected);
  REQUIRE(headrace_source_open_reader(bytes.size(), read_bytes, nullptr, &bytes, &source, nullptr) == HEADRACE_OK);
  check_model_from(source, expected);
}

TEST_CASE("the mapped file gives the same model") {
  headrace::Options options;
  options.set("model.use_mmap", "true");
  CHECK(logits_of(load_tiny(options).get()) == logits_of(load_tiny().get()));
}

TEST_CASE("the host's memory may go once it was released") {
  std::string bytes = read_file(tiny_path());
  int releases = 0;
  headrace_source* source = nullptr;
  headrace_model* model = nullptr;
  REQUIRE(headrace_source_open_memory(bytes.data(), bytes.size(), count, &releases, &source, nullptr) == HEADRACE_OK);
  REQUIRE(headrace_model_load_sources(&source, 1, nullptr, nullptr, nullptr, &model, nullptr) == HEADRACE_OK);
  const std::vector<float> expected = logits_of(model);
  headrace_source_destroy(source);
  if (releases == 1) std::fill(bytes.begin(), bytes.end(), '\x5a');  // the model copied what it needs
  CHECK(logits_of(model) == expected);
  headrace_model_destroy(model);
  CHECK(releases == 1);
}

TEST_CASE("what is no model is refused with a code that says why") {
  CHECK(failure_of([] { headrace::Model::load("/nowhere/at/all.gguf"); }).code == HEADRACE_NOT_FOUND);
  CHECK(failure_of([] { headrace::Model::load(""); }).code == HEADRACE_INVALID_ARGUMENT);
  const auto load_bytes = [](const std::string& bytes) {
    return failure_of([&] {
             std::vector<headrace::Source> sources;
             sources.push_back(headrace::Source::memory(bytes.data(), bytes.size()));
             headrace::Model::load(sources);
           })
        .code;
  };
  CHECK(load_bytes("") == HEADRACE_MALFORMED);
  CHECK(load_bytes("this is a text and no model at all") == HEADRACE_MALFORMED);
  const std::string bytes = read_file(tiny_path());
  // Every way of being cut short is told, from inside the header to inside the last tensor.
  for (size_t size = 0; size < bytes.size(); size += 997) {
    INFO("the first " << size << " bytes");
    CHECK(load_bytes(bytes.substr(0, size)) == HEADRACE_MALFORMED);
  }
  CHECK(load_bytes(bytes.substr(0, bytes.size() - 1)) == HEADRACE_MALFORMED);
  headrace_source* sources[] = {nullptr};
  headrace_model* model = nullptr;
  headrace_error* error = nullptr;
  CHECK(headrace_model_load_sources(sources, 1, nullptr, nullptr, nullptr, &model, &error) ==
        HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "sources[0]");
  headrace_error_destroy(error);
}

TEST_CASE("an error names its source once") {
  const auto failure = [](const std::string& bytes, int (*read)(void*, uint64_t, void*, uint64_t)) {
    headrace_source* source = nullptr;
    headrace_model* model = nullptr;
    headrace_error* error = nullptr;
    std::string copy = bytes;
    REQUIRE(headrace_source_open_reader(copy.size(), read, nullptr, &copy, &source, nullptr) == HEADRACE_OK);
    CHECK(headrace_model_load_sources(&source, 1, nullptr, nullptr, nullptr, &model, &error) != HEADRACE_OK);
    REQUIRE(error != nullptr);
    const Failure out = {headrace_error_get_code(error), headrace_error_get_place(error),
                         headrace_error_get_message(error)};
    headrace_error_destroy(error);
    headrace_source_destroy(source);
    return out;
  };
  const auto broken = [](void*, uint64_t offset, void* destination, uint64_t size) {
    if (offset != 0 || size > 8) return 1;
    std::memcpy(destination, "GGUF\3\0\0\0", static_cast<size_t>(size));
    return 0;
  };
  CHECK(failure(std::string(100, 'x'), broken).place == "reader: header");
  const Failure empty = failure("", read_bytes);
  CHECK(empty.code == HEADRACE_MALFORMED);
  CHECK(empty.place == "reader");
  CHECK(empty.message == "0 bytes are neither a GGUF nor a safetensors file");
}

TEST_CASE("a path that holds a zero byte, or names a pipe, is refused at once") {
  headrace_source* source = nullptr;
  headrace_error* error = nullptr;
  CHECK(headrace_source_open_path("a\0b", 3, &source, &error) == HEADRACE_INVALID_ARGUMENT);
  REQUIRE(error != nullptr);
  CHECK(std::string(headrace_error_get_place(error)) == "path");
  headrace_error_destroy(error);
  const std::string pipe =
      (std::filesystem::temp_directory_path() / ("headrace_pipe_" + std::to_string(getpid()))).string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(headrace_source_open_path(pipe.data(), pipe.size(), &source, nullptr) != HEADRACE_OK);
  CHECK(source == nullptr);
  std::filesystem::remove(pipe);
}
