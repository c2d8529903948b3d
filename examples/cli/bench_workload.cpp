#include "bench_workload.h"

#include <chrono>
#include <optional>
#include <set>

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// When all requests had their first token, when the last event came, and the tokens drawn in between.
struct Course {
  Clock::time_point prefilled, resumed, end;
  int64_t decoded = 0;
};

Course run_to_end(const std::vector<headrace::Request>& requests, headrace::Scheduler& scheduler,
                  const std::function<void()>& on_prefilled) {
  for (const headrace::Request& request : requests) scheduler.submit(request);
  std::set<uint64_t> started;
  Course course;
  size_t finished = 0;
  while (finished < requests.size()) {
    scheduler.step();
    bool all_now = false;
    while (std::optional<headrace::Event> event = scheduler.next_event()) {
      if (event->type() == headrace::EventType::kFailed) throw event->error();
      const int64_t tokens = static_cast<int64_t>(event->tokens().size());
      const bool all_started = started.size() == requests.size();
      if (tokens > 0) started.insert(event->request_id());
      if (all_started) course.decoded += tokens;
      all_now = all_now || (!all_started && started.size() == requests.size());
      finished += event->is_last() ? 1 : 0;
    }
    course.end = Clock::now();
    if (!all_now) continue;
    // Tokens that others drew in this step came before the last first one, or with it.
    course.decoded = 0;
    course.prefilled = course.end;
    if (on_prefilled) on_prefilled();
    course.resumed = course.end = Clock::now();
  }
  return course;
}

}  // namespace

std::vector<int32_t> arbitrary_tokens(const headrace::Tokenizer& tokenizer, int count, uint64_t seed) {
  std::vector<int32_t> tokens;
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  while (static_cast<int>(tokens.size()) < count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int32_t token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(tokenizer.vocab_size()));
    if (!tokenizer.is_special(token)) tokens.push_back(token);
  }
  return tokens;
}

Rates run_workload(const Workload& workload, const headrace::Model& model, headrace::Scheduler& scheduler,
                   uint64_t seed, const std::function<void()>& on_prefilled) {
  const headrace::Tokenizer tokenizer = model.tokenizer();
  std::vector<headrace::Request> requests;
  for (int sequence = 0; sequence < workload.batch; ++sequence) {
    headrace::Request& request = requests.emplace_back(model);
    request.add_tokens(
        arbitrary_tokens(tokenizer, workload.prompt_tokens, seed * 1000 + static_cast<uint64_t>(sequence)));
    request.set_ignore_eos(true).set_length(0, workload.gen_tokens);
  }
  const Clock::time_point start = Clock::now();
  const Course course = run_to_end(requests, scheduler, on_prefilled);
  Rates rates;
  rates.prefill_seconds = seconds_between(start, course.prefilled);
  rates.decode_seconds = seconds_between(course.resumed, course.end);
  rates.prefill = static_cast<double>(workload.prompt_tokens) * workload.batch / rates.prefill_seconds;
  if (course.decoded > 0) rates.decode = static_cast<double>(course.decoded) / rates.decode_seconds;
  return rates;
}

double decode_rate(const std::vector<headrace::Request>& requests, headrace::Scheduler& scheduler) {
  const Course course = run_to_end(requests, scheduler, {});
  return course.decoded > 0 ? static_cast<double>(course.decoded) / seconds_between(course.resumed, course.end) : 0;
}

}  // namespace cli
