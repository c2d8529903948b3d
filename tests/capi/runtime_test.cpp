// Several models on one runtime: the same bits as alone, one budget, priorities, and any order of destruction.
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Model;
using headrace::Options;
using headrace::Request;
using headrace::Runtime;
using headrace::Scheduler;

std::string folder_of(const std::string& name) { return HEADRACE_SOURCE_DIR "/tests/data/goldens/" + name; }

Options options_of(const Runtime& runtime, int priority = 0) {
  Options options;
  options.set("kv.max_tokens", "256").set("engine.priority", std::to_string(priority)).set_runtime(runtime);
  return options;
}

Request request_of(const Model& model, int32_t first, int64_t max_tokens) {
  Request request(model);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 20; ++i) prompt.push_back(5 + (first + i) % 60);
  request.add_tokens(prompt).set_length(0, max_tokens).set_ignore_eos(true);
  return request;
}

}  // namespace

TEST_CASE("models that share threads give what each gives alone, stepped by threads of their own") {
  const std::vector<std::string> names = {"llama", "qwen2", "gemma3"};
  std::vector<std::vector<int32_t>> alone;
  for (const std::string& name : names) {
    const Model model = Model::load(folder_of(name));
    Scheduler scheduler(model);
    alone.push_back(generate(scheduler, request_of(model, 3, 40)).tokens);
  }
  Options settings;
  settings.set("engine.threads", "2").set("runtime.max_overtakes", "2").set("runtime.patience_us", "200");
  std::optional<Runtime> runtime(settings);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> together(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    threads.emplace_back([&, i] {
      const Options options = options_of(*runtime, static_cast<int>(i));
      const Model model = Model::load(folder_of(names[i]), options);  // while others run
      Scheduler scheduler(model, options);
      for (int round = 0; round < 5; ++round) together[i] = generate(scheduler, request_of(model, 3, 40)).tokens;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together == alone);
  const headrace_runtime_stats stats = runtime->stats();
  CHECK(stats.num_threads == 2);
  CHECK(stats.turns > 3 * 40);
  CHECK(stats.used_bytes == 0);  // the models are gone
  CHECK(stats.peak_bytes > 0);
}

TEST_CASE("weights, caches and workspaces come out of one budget, and what does not fit is refused with the counts") {
  Options settings;
  settings.set("engine.threads", "1");
  uint64_t needed = 0, weights = 0;
  {
    const Runtime runtime(settings);
    const Options options = options_of(runtime);
    const Model model = Model::load(tiny_path(), options);
    weights = runtime.stats().used_bytes;
    CHECK(weights == model.info().weight_bytes);
    const Scheduler scheduler(model, options);
    needed = runtime.stats().used_bytes;
    CHECK(needed > weights + scheduler.metrics().kv_blocks);
  }
  settings.set("runtime.max_bytes", std::to_string(needed + weights));
  std::optional<Runtime> runtime(settings);
  const Options options = options_of(*runtime);
  std::optional<Model> first(Model::load(tiny_path(), options));
  std::optional<Scheduler> scheduler(std::in_place, *first, options);
  CHECK(runtime->stats().used_bytes == needed);
  const Model second = Model::load(tiny_path(), options);
  Failure failure = failure_of([&] { Scheduler refused(second, options); });
  CHECK(failure.code == HEADRACE_RESOURCE_EXHAUSTED);
  failure = failure_of([&] { Model::load(tiny_path(), options); });
  CHECK(failure.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(failure.message.find("runtime.max_bytes") != std::string::npos);
  CHECK(runtime->stats().used_bytes == needed + weights);
  // What the first gives back is there for the second, whatever handle of the runtime is left.
  scheduler.reset();
  first.reset();
  CHECK(runtime->stats().used_bytes == weights);
  Scheduler after(second, options);
  runtime.reset();
  CHECK(generate(after, request_of(second, 1, 4)).tokens.size() == 4);
}

TEST_CASE("options ask for the runtime's threads or for none") {
  Options settings;
  settings.set("engine.threads", "2");
  const Runtime runtime(settings);
  CHECK(failure_of([&] { Runtime nested(options_of(runtime)); }).code == HEADRACE_INVALID_ARGUMENT);
  Options options = options_of(runtime);
  options.set("engine.threads", "3");
  const Failure failure = failure_of([&] { Model::load(tiny_path(), options); });
  CHECK(failure.code == HEADRACE_INVALID_ARGUMENT);
  CHECK(failure.place == "engine.threads");
  options.set("engine.threads", "2");
  CHECK(Model::load(tiny_path(), options).info().num_threads == 2);
  headrace_runtime_stats stats;
  stats.struct_size = 0;
  CHECK(headrace_runtime_get_stats(runtime.get(), &stats, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_runtime_get_stats(nullptr, &stats, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_options_set_runtime(nullptr, runtime.get(), nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_runtime_create(nullptr, nullptr, nullptr) == HEADRACE_INVALID_ARGUMENT);
}

TEST_CASE("a model of higher priority is served before one that would take all") {
  Options settings;
  settings.set("engine.threads", "1").set("runtime.max_overtakes", "4").set("runtime.patience_us", "1000000");
  const Runtime runtime(settings);
  const Options low_options = options_of(runtime), high_options = options_of(runtime, 10);
  const Model low_model = Model::load(tiny_path(), low_options), high_model = Model::load(tiny_path(), high_options);
  Scheduler low(low_model, low_options), high(high_model, high_options);
  std::atomic<bool> ends{false};
  std::thread busy([&] {
    while (!ends) generate(low, request_of(low_model, 1, 100));
  });
  while (low.metrics().num_steps < 5) std::this_thread::yield();
  // Watched between the first and the last step of the other: how long the system leaves threads waiting before and after is
  // not the queue's to say. A watcher that gets no time between the two tries again.
  uint64_t high_steps = 0, low_steps = 0;
  for (int attempt = 0; attempt < 100 && high_steps < 50; ++attempt) {
    const uint64_t begin = high.metrics().num_steps;
    std::thread other([&] { generate(high, request_of(high_model, 2, 200)); });
    while (high.metrics().num_steps == begin) std::this_thread::yield();
    const uint64_t high_from = high.metrics().num_steps, low_from = low.metrics().num_steps;
    for (;;) {
      const uint64_t low_now = low.metrics().num_steps, high_now = high.metrics().num_steps;
      if (high_now >= begin + 200) break;
      high_steps = high_now - high_from;
      low_steps = low_now - low_from;
    }
    other.join();
  }
  ends = true;
  busy.join();
  CHECK(high_steps >= 50);
  CHECK(low_steps <= high_steps / 4 + 2);  // one step in five at most
}
