// Options: each default is accepted where it is read, what is no value is refused by the option's name; and the
// convention of buffers, which the functions about options show as well as any.
#include <sched.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;

}  // namespace

TEST_CASE("each option's default is accepted, and makes what the option is about") {
  headrace::Options all;
  const std::vector<std::string> infos = headrace::Options::list();
  REQUIRE(infos.size() == headrace_options_get_count());
  for (const std::string& text : infos) {
    const nlohmann::json info = nlohmann::json::parse(text);
    const std::string key = info.at("key"), value = info.at("default");
    INFO(key);
    CHECK_FALSE(info.at("doc").get<std::string>().empty());
    CHECK_NOTHROW(headrace::Options().set(key, value));
    CHECK_NOTHROW(all.set(key, value));
  }
  const headrace::Model model = load_tiny(all);
  const headrace::KVCache cache(model, all);
  CHECK_NOTHROW(headrace::Session(model, cache, all));
  CHECK_NOTHROW(headrace::Scheduler(model, cache, all));
}

TEST_CASE("what is no value of an option is refused, naming the option") {
  for (const std::string& text : headrace::Options::list()) {
    const nlohmann::json info = nlohmann::json::parse(text);
    const std::string key = info.at("key"), type = info.at("type"), range = info.at("range");
    std::vector<std::string> bad = {
        "", " ", "maybe", "-1", "4 ", "0x10", "1e3", "99999999999999999999999", "True", std::string("1\0", 2)};
    if (type == "text") bad = {"", std::string("1\0", 2), std::string(5000, 'x')};  // a path that may exist later
    if (type == "integer") {
      const long long high = std::stoll(range.substr(range.find("..") + 2));
      bad.push_back(std::to_string(high + 1));
    }
    if (type == "list") bad.erase(bad.begin());  // an empty list is one
    if (range.front() == '-') std::erase(bad, "-1");
    for (const std::string& value : bad) {
      INFO(key << " = " << value);
      const Failure failure = failure_of([&] { headrace::Options().set(key, value); });
      CHECK(failure.code == HEADRACE_INVALID_ARGUMENT);
      CHECK(failure.place == key);
      CHECK_FALSE(failure.message.empty());
    }
  }
}

TEST_CASE("an instruction set the machine lacks, and a block size of no multiple, are refused") {
  CHECK(failure_of([] { headrace::Options().set("kv.block_size", "24"); }).place == "kv.block_size");
  headrace::Options options;
  options.set("engine.isa", "avx512_vnni");
  const bool has = headrace::describe_system().find("avx512_vnni") != std::string::npos;
  const Failure failure = failure_of([&] { load_tiny(options); });
  CHECK((failure.code == HEADRACE_OK) == has);
  if (!has) CHECK(failure.place == "engine.isa");
}

TEST_CASE("threads are bound to the processors that are named, and one that is not there is refused") {
  const std::string here = std::to_string(sched_getcpu());
  CHECK(load_tiny(headrace::Options().set("engine.affinity", here)).info().num_threads == 1);
  headrace::Options options;
  options.set("engine.affinity", here).set("engine.threads", "3");
  CHECK(load_tiny(options).info().num_threads == 3);
  const Failure failure = failure_of([&] { load_tiny(options.set("engine.affinity", here + ",8191")); });
  CHECK(failure.code == HEADRACE_INVALID_ARGUMENT);
  CHECK(failure.place == "engine.affinity");
  CHECK(failure.message.find("8191") != std::string::npos);
  CHECK(failure_of([&] { options.set("engine.affinity", "3-1"); }).message.find("3-1") != std::string::npos);
}

TEST_CASE("unknown keys are refused, and a slip is told from the right word") {
  for (const std::string& key : {std::string(), std::string("engine"), std::string("Engine.threads"),
                                 std::string("engine.threads\0", 15), std::string(100000, 'k')}) {
    CHECK(failure_of([&] { headrace::Options().set(key, "1"); }).code == HEADRACE_INVALID_ARGUMENT);
  }
  CHECK(failure_of([] { headrace::Options().set("kv.dtyp", "f16"); }).message.find("kv.dtype") != std::string::npos);
}

TEST_CASE("buffers: the size is asked for, too small writes nothing, exact fits") {
  size_t needed = 0;
  headrace_error* error = nullptr;
  CHECK(headrace_options_get_info(0, nullptr, 0, &needed, &error) == HEADRACE_BUFFER_TOO_SMALL);
  CHECK(headrace_error_get_code(error) == HEADRACE_BUFFER_TOO_SMALL);
  headrace_error_destroy(error);
  REQUIRE(needed > 2);
  std::string buffer(needed + 1, '#');
  size_t again = 0;
  CHECK(headrace_options_get_info(0, buffer.data(), needed - 1, &again, nullptr) == HEADRACE_BUFFER_TOO_SMALL);
  CHECK(again == needed);
  CHECK(buffer == std::string(needed + 1, '#'));
  CHECK(headrace_options_get_info(0, buffer.data(), needed, &again, nullptr) == HEADRACE_OK);
  CHECK(again == needed);
  CHECK(buffer.front() == '{');
  CHECK(buffer[needed - 1] == '}');
  CHECK(buffer[needed] == '#');  // no terminating zero
  CHECK(headrace_options_get_info(0, buffer.data(), needed, nullptr, &error) == HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "needed");
  headrace_error_destroy(error);
  CHECK(headrace_options_get_info(0, nullptr, 4, &again, &error) == HEADRACE_INVALID_ARGUMENT);
  CHECK(std::string(headrace_error_get_place(error)) == "buffer");
  headrace_error_destroy(error);
  CHECK(headrace_options_get_info(headrace_options_get_count(), nullptr, 0, &needed, nullptr) == HEADRACE_NOT_FOUND);
}

TEST_CASE("an empty result needs no buffer, and an error is cleared by success") {
  const headrace::Tokenizer tokenizer = text_model().tokenizer();
  size_t needed = 99;
  headrace_error* error = reinterpret_cast<headrace_error*>(&needed);  // what the call must overwrite
  CHECK(headrace_tokenizer_encode(tokenizer.get(), nullptr, 0, 0, nullptr, 0, &needed, &error) == HEADRACE_OK);
  CHECK(needed == 0);
  CHECK(error == nullptr);
}

TEST_CASE("the log gets lines from what was made with the options, and none by default") {
  std::vector<std::string> lines;
  headrace::Options options;
  options.set_log(
      [](void* user, int32_t level, const char* component, const char* line) {
        CHECK(level >= 0);
        CHECK(level <= 3);
        CHECK(std::strlen(component) > 0);
        CHECK(std::strchr(line, '\n') == nullptr);
        static_cast<std::vector<std::string>*>(user)->emplace_back(line);
      },
      &lines);
  load_tiny(options);
  CHECK_FALSE(lines.empty());
  lines.clear();
  options.set_log(nullptr, nullptr);
  load_tiny(options);
  CHECK(lines.empty());
}
