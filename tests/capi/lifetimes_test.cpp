// Lives of objects: opened and closed unused, destroyed during a step, shared by threads, replaced; and what a process
// keeps after many of them: no memory, and nothing written to its standard output and error.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "capi/tiny_model.h"

namespace {

#if defined(HEADRACE_SANITIZED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

using namespace capi_test;
using headrace::Request;
using headrace::Scheduler;

Request make_request(const headrace::Model& model, int32_t first, size_t prompt_size, int64_t max_tokens) {
  Request request(model);
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < prompt_size; ++i) prompt.push_back(static_cast<int32_t>(5 + (first + 11 * i) % 90));
  request.add_tokens(prompt).set_length(0, max_tokens).set_ignore_eos(true);
  return request;
}

uint64_t resident_bytes() {
  // glibc keeps freed memory of its arenas for later; what the library lost is what remains after it gave that back.
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Resident memory after the third and after the last of 50 rounds of load, generate, destroy.
void check_cycles(const std::string& path) {
  uint64_t third = 0, last = 0;
  std::vector<int32_t> expected;
  for (int cycle = 1; cycle <= 50; ++cycle) {
    {
      const headrace::Model model = headrace::Model::load(path);
      Scheduler scheduler(model);
      const Output output = generate(scheduler, make_request(model, 1, 12, 4));
      if (cycle == 1) expected = output.tokens;
      CHECK(output.tokens == expected);
    }
    if (cycle == 3) third = resident_bytes();
    if (cycle == 50) last = resident_bytes();
  }
  INFO(path << ": " << third << " bytes after 3 rounds, " << last << " after 50");
  CHECK(last <= third + std::max<uint64_t>(uint64_t{2} << 20, third / 100));
}

// What `work` writes to descriptors 1 and 2, whoever writes it.
template <class Work>
std::string written_by(const Work& work) {
  const TemporaryFolder folder;
  std::cout.flush();
  std::fflush(nullptr);
  const int kept_out = dup(1), kept_error = dup(2);
  std::FILE* file = std::fopen((folder / "written").c_str(), "w");
  REQUIRE(file != nullptr);
  dup2(fileno(file), 1);
  dup2(fileno(file), 2);
  std::string failure;
  try {
    work();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::fflush(nullptr);
  dup2(kept_out, 1);
  dup2(kept_error, 2);
  close(kept_out);
  close(kept_error);
  std::fclose(file);
  CHECK(failure.empty());
  return read_file(folder / "written");
}

}  // namespace

TEST_CASE("everything may be opened and closed without being used") {
  for (int round = 0; round < 5; ++round) {
    const headrace::Model model = load_tiny();
    const headrace::KVCache cache(model);
    const headrace::Session session(model, cache);
    const Request request(model);
    const Scheduler scheduler(model, cache);
    const headrace::Detokenizer detokenizer(text_model().tokenizer());
    const headrace::ChatTemplate chat_template(text_model());
  }
  Scheduler scheduler(text_model());
  scheduler.submit(make_request(text_model(), 1, 40, 8));  // queued and never run
}

TEST_CASE("a scheduler is destroyed on another thread while it steps") {
  const headrace::KVCache cache(text_model());
  const int64_t free_before = cache.stats().free_blocks;
  int caught = 0;
  for (int round = 0; round < 300 && caught < 5; ++round) {
    headrace_scheduler* scheduler = nullptr;
    REQUIRE(headrace_scheduler_create(text_model().get(), cache.get(), nullptr, &scheduler, nullptr) == HEADRACE_OK);
    headrace::Session session(text_model(), cache);
    uint64_t id = 0;
    for (int32_t i = 0; i < 8; ++i) {
      Request request = make_request(text_model(), 200 * round + 13 * i, 200, 20);
      request.set_cache_salt(std::to_string(round * 8 + i));
      REQUIRE(headrace_scheduler_submit(scheduler, request.get(), &id, nullptr) == HEADRACE_OK);
    }
    Request with_session = make_request(text_model(), 1, 20, 20);
    with_session.set_session(session);
    REQUIRE(headrace_scheduler_submit(scheduler, with_session.get(), &id, nullptr) == HEADRACE_OK);
    std::atomic<bool> entering{false}, done{false};
    headrace_status stepped = HEADRACE_OK;
    std::thread stepper([&] {
      int32_t has_work = 0;
      entering = true;
      stepped = headrace_scheduler_step(scheduler, &has_work, nullptr);
      done = true;
    });
    // The second caller is refused while the first is inside: only then it is sure that a step is in flight.
    bool inside = false;
    while (!entering) std::this_thread::yield();
    // A moment's head start, so that this thread does not take the step itself; the whole step takes far longer.
    const auto head_start = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    while (std::chrono::steady_clock::now() < head_start) {
    }
    while (!inside && !done) {
      int32_t has_work = 0;
      inside = headrace_scheduler_step(scheduler, &has_work, nullptr) == HEADRACE_FAILED_PRECONDITION;
    }
    headrace_scheduler_destroy(scheduler);
    caught += inside && !done ? 1 : 0;
    stepper.join();
    CHECK((stepped == HEADRACE_OK || stepped == HEADRACE_FAILED_PRECONDITION));
    CHECK_NOTHROW(session.rewind(0));  // free again
  }
  CHECK(caught >= 1);
  CHECK(cache.stats().free_blocks == free_before);
}

TEST_CASE("two schedulers on one model run on two threads and draw what one draws") {
  const auto outputs = [](int32_t first) {
    Scheduler scheduler(text_model());
    std::vector<std::vector<int32_t>> tokens;
    for (int32_t i = 0; i < 6; ++i)
      tokens.push_back(generate(scheduler, make_request(text_model(), first + i, 30, 20)).tokens);
    return tokens;
  };
  const auto expected_a = outputs(0), expected_b = outputs(31);
  std::vector<std::vector<int32_t>> a, b;
  std::thread other([&] { b = outputs(31); });
  a = outputs(0);
  other.join();
  CHECK(a == expected_a);
  CHECK(b == expected_b);
}

TEST_CASE("a session of a model that was replaced goes on") {
  auto model = std::make_unique<headrace::Model>(load_tiny());
  headrace::Session session(*model);
  const std::vector<int32_t> tokens = {9, 8, 7, 6};
  std::vector<float> before(4 * 96), after(4 * 96);
  session.evaluate(tokens.data(), 4, before.data(), before.size());
  session.rewind(0);
  *model = headrace::Model::load(golden_path("qwen3"));
  Scheduler scheduler(*model);
  CHECK(generate(scheduler, make_request(*model, 1, 12, 4)).tokens.size() == 4);
  CHECK(failure_of([&] { Request(*model).set_session(session); }).code == HEADRACE_FAILED_PRECONDITION);
  session.evaluate(tokens.data(), 4, after.data(), after.size());
  CHECK(before == after);
}

TEST_CASE("nothing is written to standard output and error") {
  CHECK(written_by([] { std::cerr << "heard"; }) == "heard");
  const std::string written = written_by([] {
    const headrace::Model model = load_tiny();
    const headrace::KVCache cache(model);
    Scheduler scheduler(model, cache);
    generate(scheduler, make_request(model, 1, 40, 8));
    headrace::Session session(model, cache);
    session.append({9, 8});
    const TemporaryFolder folder;
    session.save(folder / "session");
    headrace::Session::restore(model, cache, folder / "session");
    const std::string bytes = read_file(tiny_path()).substr(0, 5000);
    std::vector<headrace::Source> sources;
    sources.push_back(headrace::Source::memory(bytes.data(), bytes.size()));
    failure_of([&] { headrace::Model::load(sources); });
    failure_of([&] { headrace::Model::load("/nowhere"); });
    failure_of([&] { headrace::Options().set("kv.dtype", "f15"); });
    failure_of([&] { headrace::ChatTemplate("{% if"); });
    failure_of([&] { text_model().tokenizer().encode("\xff"); });
    model.describe();
    headrace::Model::inspect(tiny_path(), 1 << 30);
  });
  CHECK(written.empty());
}

TEST_CASE("fifty models, one after the other, leave no memory behind") {
  if (kSanitized) {
    std::cout << "SKIPPED: resident memory of fifty models, as the sanitizer keeps what was freed\n";
    return;
  }
  check_cycles(tiny_path());
  std::string path;
  uint64_t smallest = uint64_t{1} << 30;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(HEADRACE_MODELS_DIR, ignored)) {
    if (entry.path().extension() != ".gguf" || entry.file_size() >= smallest) continue;
    smallest = entry.file_size();
    path = entry.path().string();
  }
  if (path.empty()) {
    std::cout << "SKIPPED: fifty rounds of a real model, as no GGUF file below 1 GiB is in HEADRACE_MODELS_DIR\n";
    return;
  }
  check_cycles(path);
}
