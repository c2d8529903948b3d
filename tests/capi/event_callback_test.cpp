// Events by a callback, and a thread for the engine.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Event;
using headrace::Request;
using headrace::Scheduler;

Request asking(int32_t first, int64_t max_tokens) {
  Request request(text_model());
  request.add_tokens({first, first + 1, first + 2}).set_length(0, max_tokens).set_ignore_eos(true);
  return request;
}

using Told = std::map<uint64_t, std::vector<int32_t>>;

void add(Told& told, const Event& event) {
  auto& tokens = told[event.request_id()];
  const auto more = event.tokens();
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

namespace {

std::vector<int32_t> waited_for(Scheduler& scheduler, uint64_t id) {
  std::vector<int32_t> tokens;
  for (bool last = false; !last;) {
    const Event event = scheduler.wait(id);
    CHECK(event.request_id() == id);
    const auto more = event.tokens();
    tokens.insert(tokens.end(), more.begin(), more.end());
    last = event.is_last();
  }
  return tokens;
}

}  // namespace

TEST_CASE("a thread that waits for a request steps while no other one does") {
  std::vector<std::vector<int32_t>> expected;
  for (int32_t i = 0; i < 4; ++i) {
    Scheduler alone(text_model());
    expected.push_back(generate(alone, asking(10 * i + 5, 30)).tokens);
  }
  for (const bool engine_runs : {false, true}) {
    Scheduler scheduler(text_model());
    std::thread engine;
    if (engine_runs) engine = std::thread([&] { scheduler.run(); });
    std::vector<uint64_t> ids;
    for (int32_t i = 0; i < 4; ++i) ids.push_back(scheduler.submit(asking(10 * i + 5, 30)));
    std::vector<std::vector<int32_t>> got(4);
    std::vector<std::thread> waiters;
    for (size_t i = 1; i < 4; ++i) waiters.emplace_back([&, i] { got[i] = waited_for(scheduler, ids[i]); });
    got[0] = waited_for(scheduler, ids[0]);
    for (std::thread& waiter : waiters) waiter.join();
    for (size_t i = 0; i < 4; ++i) CHECK(got[i] == expected[i]);
    for (const uint64_t id : {ids[0], uint64_t{1000}}) {
      const Failure failure = failure_of([&] { scheduler.wait(id); });
      CHECK(failure.code == HEADRACE_NOT_FOUND);
      CHECK(failure.place == "request_id");
    }
    if (engine_runs) {
      scheduler.stop();
      engine.join();
    }
    scheduler.set_event_callback([](const Event&) { return true; });
    const uint64_t id = scheduler.submit(asking(5, 3));
    CHECK(failure_of([&] { scheduler.wait(id); }).code == HEADRACE_FAILED_PRECONDITION);
  }
}

TEST_CASE("an engine's thread that begins while others wait takes the steps over") {
  Scheduler scheduler(text_model());
  const uint64_t first = scheduler.submit(asking(5, 200)), second = scheduler.submit(asking(15, 200));
  std::thread waiter([&] { waited_for(scheduler, first); });
  std::thread engine([&] { scheduler.run(); });
  CHECK(waited_for(scheduler, second).size() == 200);
  waiter.join();
  scheduler.stop();
  engine.join();
  CHECK(generate(scheduler, asking(5, 2)).tokens.size() == 2);
}

TEST_CASE("each event is given to the callback after its step, as next_event would give it") {
  std::vector<std::vector<int32_t>> expected;
  {
    Scheduler scheduler(text_model());
    for (int32_t i = 0; i < 3; ++i) expected.push_back(generate(scheduler, asking(10 * i + 5, 6)).tokens);
  }
  Scheduler scheduler(text_model());
  Told told;
  std::vector<Event> kept;  // an event may be kept
  int ended = 0;
  scheduler.set_event_callback([&](Event event) {
    add(told, event);
    ended += event.is_last() ? 1 : 0;
    kept.push_back(std::move(event));
    return true;
  });
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 3; ++i) ids.push_back(scheduler.submit(asking(10 * i + 5, 6)));
  while (scheduler.step()) CHECK_FALSE(scheduler.next_event());
  CHECK(ended == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(told[ids[i]] == expected[i]);
  Told again;
  for (const Event& event : kept) add(again, event);
  CHECK(again == told);
  CHECK(failure_of([&] { scheduler.generate(asking(5, 6)); }).code == HEADRACE_FAILED_PRECONDITION);
  // Without one they are taken again.
  scheduler.set_event_callback(nullptr);
  CHECK(generate(scheduler, asking(5, 6)).tokens == expected[0]);
}

TEST_CASE("a request whose events are not taken waits, in a bounded queue, and others go on") {
  Scheduler scheduler(text_model(), headrace::Options().set("scheduler.max_events", "4"));
  uint64_t slow = 0;
  bool takes = false;
  Told told;
  int ended = 0, refused = 0;
  scheduler.set_event_callback([&](Event event) {
    if (event.request_id() == slow && !takes) {
      ++refused;
      return false;
    }
    add(told, event);
    ended += event.is_last() ? 1 : 0;
    return true;
  });
  slow = scheduler.submit(asking(5, 20));
  const uint64_t quick = scheduler.submit(asking(25, 20));
  for (int i = 0; i < 100 && ended == 0; ++i) REQUIRE(scheduler.step());
  CHECK(ended == 1);
  CHECK(told[quick].size() == 20);
  CHECK(told[slow].empty());
  CHECK(refused > 0);
  const uint64_t rows = scheduler.stats().decode_tokens;
  for (int i = 0; i < 10; ++i) CHECK(scheduler.step());
  CHECK(scheduler.stats().decode_tokens == rows);
  takes = true;
  while (scheduler.step()) {
  }
  CHECK(told[slow].size() == 20);
  CHECK(ended == 2);
  // The last events wait as well: there is work until they are taken.
  takes = false;
  slow = scheduler.submit(asking(5, 1));
  for (int i = 0; i < 10; ++i) CHECK(scheduler.step());
  takes = true;
  CHECK_FALSE(scheduler.step());
  CHECK(ended == 3);
}

TEST_CASE("a callback may submit, cancel, take itself away and destroy its scheduler") {
  auto scheduler = std::make_unique<Scheduler>(text_model());
  int ended = 0;
  uint64_t endless = scheduler->submit(asking(5, 0));
  scheduler->set_event_callback([&](Event event) {
    if (event.is_last()) ++ended;
    if (event.request_id() == endless && !event.is_last()) {
      try {
        scheduler->cancel(endless);
      } catch (const headrace::Error&) {
        // It is, already.
      }
    }
    if (event.request_id() == endless && event.is_last()) scheduler->submit(asking(6, 2));
    return true;
  });
  while (scheduler->step()) {
  }
  CHECK(ended == 2);
  const auto alive = std::make_shared<int>(0);
  scheduler->set_event_callback([&, alive](Event) {
    scheduler->set_event_callback(nullptr);
    return true;
  });
  CHECK(alive.use_count() == 2);
  generate(*scheduler, asking(5, 3));
  CHECK(alive.use_count() == 1);
  headrace_scheduler* raw = nullptr;
  REQUIRE(headrace_scheduler_create(text_model().get(), nullptr, nullptr, &raw, nullptr) == HEADRACE_OK);
  uint64_t id = 0;
  REQUIRE(headrace_scheduler_submit(raw, asking(5, 0).get(), &id, nullptr) == HEADRACE_OK);
  const auto destroys = [](void* user, headrace_event* event) -> int32_t {
    headrace_event_destroy(event);
    headrace_scheduler_destroy(static_cast<headrace_scheduler*>(user));
    return 1;
  };
  REQUIRE(headrace_scheduler_set_event_callback(raw, destroys, raw, nullptr, nullptr) == HEADRACE_OK);
  int32_t has_work = 0;
  for (int i = 0; i < 3; ++i) {
    if (headrace_scheduler_step(raw, &has_work, nullptr) != HEADRACE_OK || has_work == 0) break;
  }
  CHECK(has_work == 0);
}

TEST_CASE("a step goes on until its events are given: another is refused, and none is given twice") {
  Scheduler scheduler(text_model());
  Told told;
  std::vector<int32_t> codes;
  const auto step_code = [&]() -> headrace_status {
    try {
      scheduler.step();
    } catch (const headrace::Error& error) {
      return error.code();
    }
    return HEADRACE_OK;
  };
  scheduler.set_event_callback([&](Event event) {
    add(told, event);
    codes.push_back(step_code());
    std::thread([&] { codes.push_back(step_code()); }).join();
    return true;
  });
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 3; ++i) ids.push_back(scheduler.submit(asking(10 * i + 5, 4)));
  while (scheduler.step()) {
  }
  REQUIRE(codes.size() >= 6);
  CHECK(std::ranges::count(codes, HEADRACE_FAILED_PRECONDITION) == std::ssize(codes));
  for (const uint64_t id : ids) CHECK(told[id].size() == 4);
}

TEST_CASE("a callback that takes itself away leaves to next_event what it did not take") {
  Scheduler scheduler(text_model());
  Told told;
  scheduler.set_event_callback([&](Event event) {
    scheduler.set_event_callback(nullptr);
    // It stays until the callback says that it took it: here another takes it meanwhile.
    const auto again = scheduler.next_event();
    CHECK((again && again->tokens() == event.tokens()));
    add(told, event);
    return true;
  });
  const uint64_t first = scheduler.submit(asking(5, 4)), second = scheduler.submit(asking(25, 4));
  while (scheduler.step()) {
  }
  while (const auto event = scheduler.next_event()) add(told, *event);
  CHECK(told[first].size() == 4);
  CHECK(told[second].size() == 4);
}

TEST_CASE("one thread runs the engine: it sleeps until there is work, and ends where it is stopped") {
  Scheduler scheduler(text_model());
  std::atomic<int> ended{0};
  scheduler.set_event_callback([&](Event event) {
    if (event.is_last()) ++ended;
    return true;
  });
  std::thread engine([&] { scheduler.run(); });
  const auto wait_for = [&](int count) {
    for (int i = 0; i < 30000 && ended < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(ended == count);
  };
  scheduler.submit(asking(5, 3));
  wait_for(1);
  const uint64_t steps = scheduler.stats().num_steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(scheduler.stats().num_steps == steps);
  const uint64_t endless = scheduler.submit(asking(5, 0));
  for (int32_t i = 0; i < 5; ++i) scheduler.submit(asking(5 + i, 3));
  scheduler.cancel(endless);
  wait_for(7);
  scheduler.stop();
  engine.join();
  scheduler.submit(asking(5, 3));
  CHECK(scheduler.step());  // the host's own loop may go on

  // Destroyed, it ends too.
  headrace_scheduler* other = nullptr;
  REQUIRE(headrace_scheduler_create(text_model().get(), nullptr, nullptr, &other, nullptr) == HEADRACE_OK);
  std::atomic<bool> runs{false};
  std::atomic<headrace_status> status{-1};
  std::thread second([&] {
    runs = true;
    status = headrace_scheduler_run(other, nullptr);
  });
  while (!runs) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  headrace_scheduler_destroy(other);
  second.join();
  CHECK(status == HEADRACE_OK);
}
