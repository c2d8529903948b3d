// What /health says of an engine: a step that does not end, one that fails, and what comes after.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "capi/tiny_model.h"
#include "engine_thread.h"

namespace {

using namespace std::chrono_literals;
using headrace::Model;
using headrace::Request;
using headrace::Scheduler;
using server::EngineThread;

// Holds the steps that come to it, until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_for_a_step() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, 60s, [&] { return reached_; }));
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false, open_ = false;
};

class GateMask : public headrace::TokenMask {
 public:
  explicit GateMask(Gate& gate) : gate_(gate) {}
  bool fill(uint32_t*, size_t) override {
    gate_.pass();
    return false;
  }
  bool advance(int32_t) override { return true; }
  void retreat(int32_t) noexcept override {}

 private:
  Gate& gate_;
};

class Listener : public server::EventSink {
 public:
  void on_event(size_t, const headrace::Event* event) override {
    const std::lock_guard lock(mutex_);
    ended_ = ended_ || event == nullptr || event->is_last();
    failed_ = failed_ || event == nullptr;
    changed_.notify_all();
  }
  // Until the request's last event; whether the engine failed.
  bool failed() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, 60s, [&] { return ended_; }));
    return failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false, failed_ = false;
};

struct Engine {
  Model model = Model::load(capi_test::tiny_path(), headrace::Options().set("engine.threads", "1"));
  Scheduler scheduler{model};
  EngineThread thread{scheduler, [](const std::function<void()>& task) { task(); }};

  Request request() const {
    Request request(model);
    request.add_tokens({11, 12, 13}).set_length(0, 4).set_ignore_eos(true);
    return request;
  }
  Request request(Gate& gate) const {
    Request gated = request();
    gated.set_token_mask([&gate] { return std::make_unique<GateMask>(gate); });
    return gated;
  }
  std::shared_ptr<Listener> submit(Request request) {
    auto listener = std::make_shared<Listener>();
    std::vector<Request> requests;
    requests.push_back(std::move(request));
    thread.submit(requests, listener, [](const std::vector<uint64_t>&) {});
    return listener;
  }
  std::string status(double stall_limit_s) const { return thread.health().status(stall_limit_s); }
  void wait_until_ok() const {
    for (int i = 0; i < 6000 && status(3600) != "ok"; ++i) std::this_thread::sleep_for(10ms);
    CHECK(status(3600) == "ok");
  }
};

}  // namespace

TEST_CASE("an engine is stalled while a request waits for a step that is older than the limit") {
  Engine engine;
  CHECK(engine.status(0) == "ok");
  CHECK(engine.thread.health().last_step_age_s == -1);
  Gate gate;
  const auto listener = engine.submit(engine.request(gate));
  gate.wait_for_a_step();
  std::this_thread::sleep_for(20ms);
  const EngineThread::Health health = engine.thread.health();
  CHECK(health.num_requests == 1);
  CHECK(health.last_step_age_s >= 0.02);
  CHECK(health.status(0.01) == std::string("stalled"));
  CHECK(health.status(3600) == std::string("ok"));
  gate.open();
  CHECK_FALSE(listener->failed());
  CHECK(engine.thread.health().num_requests == 0);
  CHECK(engine.status(0) == "ok");  // nobody waits, however long ago the last step was
}

TEST_CASE("an engine whose step fails tells those that wait, says so, and recovers by itself") {
  Engine engine;
  Gate gate;
  // Two threads must not step one scheduler.
  engine.scheduler.submit(engine.request(gate));
  std::thread other([&] { engine.scheduler.step(); });
  gate.wait_for_a_step();
  CHECK(engine.submit(engine.request())->failed());
  const EngineThread::Health health = engine.thread.health();
  CHECK(health.status(3600) == std::string("failing"));
  CHECK(health.failure != "");
  CHECK(health.num_requests == 0);
  gate.open();
  other.join();
  engine.wait_until_ok();
  CHECK_FALSE(engine.submit(engine.request())->failed());
  CHECK(engine.status(3600) == "ok");
}
