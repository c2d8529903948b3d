#include "engine_thread.h"

#include <optional>

namespace server {
namespace {

constexpr std::chrono::milliseconds kPauseAfterFailure{100};

}  // namespace

EngineThread::EngineThread(headrace::Scheduler& scheduler, Post post)
    : scheduler_(scheduler), post_(std::move(post)), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineThread::submit(const std::vector<headrace::Request>& requests, const std::shared_ptr<EventSink>& sink,
                          const std::function<void(std::vector<uint64_t>)>& accepted) {
  std::vector<uint64_t> ids;
  try {
    // No event is collected before all are there.
    const std::lock_guard lock(mutex_);
    for (const headrace::Request& request : requests) ids.push_back(scheduler_.submit(request));
    for (size_t slot = 0; slot < ids.size(); ++slot) sinks_.emplace(ids[slot], std::pair(sink, slot));
    has_news_ = true;
    accepted(ids);
  } catch (const headrace::Error&) {
    for (const uint64_t id : ids) cancel(id);  // nobody hears of these
    throw;
  }
  wake_.notify_one();
}

void EngineThread::cancel(uint64_t request_id) {
  try {
    scheduler_.cancel(request_id);
  } catch (const headrace::Error&) {
    return;  // it has ended
  }
  {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
  }
  wake_.notify_one();
}

void EngineThread::cancel_all() {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, sink] : sinks_) ids.push_back(id);
  }
  for (const uint64_t id : ids) cancel(id);
}

const char* EngineThread::Health::status(double stall_limit_s) const {
  if (!failure.empty()) return "failing";
  return num_requests > 0 && last_step_age_s > stall_limit_s ? "stalled" : "ok";
}

EngineThread::Health EngineThread::health() const {
  const std::lock_guard lock(mutex_);
  Health health;
  health.num_requests = sinks_.size();
  health.failure = failure_;
  if (last_step_ != Clock::time_point()) {
    health.last_step_age_s = std::chrono::duration<double>(Clock::now() - last_step_).count();
  }
  return health;
}

void EngineThread::run() {
  bool has_work = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return has_work || has_news_ || stops_; });
      if (stops_) return;
      has_news_ = false;
      last_step_ = Clock::now();
    }
    try {
      has_work = scheduler_.step();
      clear_failure();
    } catch (const headrace::Error& error) {
      has_work = true;  // whether it still fails shows at the next try only
      fail(error);
      std::this_thread::sleep_for(kPauseAfterFailure);
    }
    auto deliveries = std::make_shared<std::vector<Delivery>>(collect());
    if (deliveries->empty()) continue;
    post_([deliveries] {
      for (Delivery& delivery : *deliveries) delivery.sink->on_event(delivery.slot, delivery.event.get());
    });
  }
}

std::vector<EngineThread::Delivery> EngineThread::collect() {
  std::vector<Delivery> deliveries;
  const std::lock_guard lock(mutex_);
  while (std::optional<headrace::Event> event = scheduler_.next_event()) {
    const auto found = sinks_.find(event->request_id());
    if (found == sinks_.end()) continue;
    const bool is_last = event->is_last();
    deliveries.push_back(
        {found->second.first, found->second.second, std::make_unique<headrace::Event>(std::move(*event))});
    if (is_last) sinks_.erase(found);
  }
  last_step_ = Clock::now();
  return deliveries;
}

void EngineThread::clear_failure() {
  const std::lock_guard lock(mutex_);
  failure_.clear();
}

// Nothing can run: whoever waits is told, and another step is tried soon.
void EngineThread::fail(const headrace::Error& error) {
  auto deliveries = std::make_shared<std::vector<Delivery>>();
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
    for (const auto& [id, sink] : sinks_) {
      ids.push_back(id);
      deliveries->push_back({sink.first, sink.second, nullptr});
    }
    sinks_.clear();
  }
  for (const uint64_t id : ids) cancel(id);
  post_([deliveries] {
    for (Delivery& delivery : *deliveries) delivery.sink->on_event(delivery.slot, nullptr);
  });
}

}  // namespace server
