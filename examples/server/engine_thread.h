// The thread that steps the scheduler and hands its events to the I/O thread.
#pragma once

#include <headrace/headrace.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace server {

// Where the events of a request go; called on the I/O thread, in order, up to the terminal one.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // slot: of the request, as submit numbers them. event is null where the engine itself failed: nothing follows.
  virtual void on_event(size_t slot, const headrace::Event* event) = 0;
};

class EngineThread {
 public:
  using Clock = std::chrono::steady_clock;
  // Runs a task on the I/O thread.
  using Post = std::function<void(std::function<void()>)>;

  EngineThread(headrace::Scheduler& scheduler, Post post);
  // Ends the thread; requests that still run have no further event.
  ~EngineThread();

  // All of them or none; request i has slot i. accepted is told their numbers before any of their events is handed on. Throws
  // headrace::Error as headrace_scheduler_submit fails. Thread rule: any thread.
  void submit(const std::vector<headrace::Request>& requests, const std::shared_ptr<EventSink>& sink,
              const std::function<void(std::vector<uint64_t>)>& accepted);
  // Of a request that may have ended.
  void cancel(uint64_t request_id);
  void cancel_all();

  struct Health {
    double last_step_age_s = -1;  // since the last step began or, between steps, ended; -1 before the first
    size_t num_requests = 0;      // queued or running
    std::string failure;          // of the last step, where it failed
    // "failing", "stalled" where a request waits for a step that is older than the limit, else "ok".
    const char* status(double stall_limit_s) const;
  };
  Health health() const;

 private:
  struct Delivery {
    std::shared_ptr<EventSink> sink;
    size_t slot;
    std::unique_ptr<headrace::Event> event;
  };
  void run();
  std::vector<Delivery> collect();
  void fail(const headrace::Error& error);
  void clear_failure();

  headrace::Scheduler& scheduler_;
  const Post post_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<uint64_t, std::pair<std::shared_ptr<EventSink>, size_t>> sinks_;
  bool has_news_ = false, stops_ = false;
  std::string failure_;
  Clock::time_point last_step_{};
  std::thread thread_;
};

}  // namespace server
