#include "serve_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "bench_workload.h"
#include "statistics.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

// What one row of the report is made of.
struct Sums : Latencies {
  int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<const TraceRequest*> turns;
  size_t next = 0;   // turn to be submitted
  double ready = 0;  // when it may be, seconds
};

struct Running {
  Conversation* conversation = nullptr;
  const TraceRequest* turn = nullptr;
  double submitted = 0, last_token = -1;
  std::vector<int32_t> tokens;
};

nlohmann::ordered_json percentiles(const std::vector<double>& values) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, fraction] : {std::pair("p50", 0.5), std::pair("p95", 0.95), std::pair("p99", 0.99)}) {
    out[name] = values.empty() ? 0.0 : percentile(values, fraction);
  }
  return out;
}

nlohmann::ordered_json row_of(const std::string& name, const Sums& sums, double seconds) {
  return {{"name", name},
          {"requests", sums.requests},
          {"prompt_tokens", sums.prompt_tokens},
          {"cached_tokens", sums.cached_tokens},
          {"output_tokens", sums.output_tokens},
          {"tokens_per_second", seconds > 0 ? static_cast<double>(sums.output_tokens) / seconds : 0.0},
          {"first_token_ms", percentiles(sums.first_token_ms)},
          {"inter_token_ms", percentiles(sums.inter_token_ms)}};
}

class Replay {
 public:
  Replay(const std::vector<TraceRequest>& trace, const headrace::Model& model, headrace::Scheduler& scheduler)
      : model_(model), tokenizer_(model.tokenizer()), scheduler_(scheduler) {
    for (const TraceRequest& turn : trace) {
      Conversation& conversation = conversations_[turn.conversation];
      if (conversation.turns.empty()) conversation.ready = turn.arrival;
      conversation.turns.push_back(&turn);
    }
  }

  nlohmann::ordered_json run() {
    start_ = Clock::now();
    look();
    while (submit_due() || !running_.empty()) {
      if (running_.empty()) {
        std::this_thread::sleep_for(std::chrono::duration<double>(std::max(next_due_ - now(), 0.0)));
        continue;
      }
      scheduler_.step();
      while (const auto event = scheduler_.next_event()) hear(*event);
      look();
    }
    const double seconds = now();
    nlohmann::ordered_json out = {{"seconds", seconds}};
    for (const auto& [key, sums] : {std::pair("classes", &classes_), std::pair("tenants", &tenants_)}) {
      out[key] = nlohmann::ordered_json::array();
      for (const auto& [name, row] : *sums) out[key].push_back(row_of(name, row, seconds));
    }
    out["total"] = row_of("total", total_, seconds);
    const headrace_scheduler_metrics metrics = scheduler_.metrics();
    const double steps = static_cast<double>(std::max<uint64_t>(metrics.num_steps, 1));
    out["scheduler"] = {{"steps", metrics.num_steps},
                        {"rows_per_step", static_cast<double>(metrics.step_rows) / steps},
                        {"sequences_per_step", static_cast<double>(metrics.step_sequences) / steps},
                        {"preemptions", metrics.preemptions},
                        {"evictions", metrics.evictions},
                        {"prefix_waits", metrics.prefix_waits}};
    return out;
  }

  ReplayRecord take_record() {
    ReplayRecord record;
    for (auto& [name, sums] : classes_) record.classes[name] = std::move(sums);
    for (auto& [name, sums] : tenants_) record.tenants[name] = std::move(sums);
    record.moments = std::move(moments_);
    return record;
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Submits the turns that are due; false where none is left to come but those of running conversations.
  bool submit_due() {
    next_due_ = 1e30;
    for (auto& [name, conversation] : conversations_) {
      if (conversation.next == conversation.turns.size() || conversation.ready >= kRunning) continue;
      if (conversation.ready > now()) {
        next_due_ = std::min(next_due_, conversation.ready);
      } else {
        submit(conversation);
      }
    }
    return next_due_ < 1e30;
  }

  void submit(Conversation& conversation) {
    const TraceRequest& turn = *conversation.turns[conversation.next++];
    const auto append = [&](int count, const std::string& name) {
      const auto more = arbitrary_tokens(tokenizer_, count, std::hash<std::string>()(name));
      conversation.tokens.insert(conversation.tokens.end(), more.begin(), more.end());
    };
    append(turn.shared_tokens, turn.shared);
    append(turn.prompt_tokens, turn.conversation + "#" + std::to_string(conversation.next));
    headrace::Request request(model_);
    request.add_tokens(conversation.tokens).set_ignore_eos(true).set_length(0, turn.output_tokens);
    request.set_tenant(turn.tenant);
    const uint64_t id = scheduler_.submit(request);
    conversation.ready = kRunning;
    running_[id] = {&conversation, &turn, now(), -1, {}};
  }

  void look() {
    const headrace_scheduler_stats stats = scheduler_.stats();
    moments_.push_back({now(), static_cast<double>(total_.output_tokens), static_cast<double>(stats.prefill_tokens),
                        static_cast<double>(stats.num_running), static_cast<double>(stats.num_waiting)});
  }

  void hear(const headrace::Event& event) {
    if (event.type() == headrace::EventType::kFailed) throw event.error();
    Running& running = running_.at(event.request_id());
    Sums& group = classes_[running.turn->group];
    Sums& tenant = tenants_[running.turn->tenant];
    const double at = now();
    // Without text to hold back each step's event has the tokens of that step.
    for (const int32_t token : event.tokens()) {
      running.tokens.push_back(token);
      for (Sums* sums : {&group, &tenant, &total_}) {
        ++sums->output_tokens;
        if (running.last_token < 0) {
          sums->first_token_ms.push_back((at - running.submitted) * 1e3);
        } else {
          sums->inter_token_ms.push_back((at - running.last_token) * 1e3);
        }
      }
      running.last_token = at;
    }
    if (event.type() != headrace::EventType::kFinished) return;
    const headrace_usage usage = event.usage();
    for (Sums* sums : {&group, &tenant, &total_}) {
      ++sums->requests;
      sums->prompt_tokens += usage.prompt_tokens;
      sums->cached_tokens += usage.cached_tokens;
    }
    Conversation& conversation = *running.conversation;
    conversation.tokens.insert(conversation.tokens.end(), running.tokens.begin(), running.tokens.end());
    if (conversation.next < conversation.turns.size()) {
      const TraceRequest& next = *conversation.turns[conversation.next];
      conversation.ready = std::max(next.arrival, at + next.delay);
    }
    running_.erase(event.request_id());
  }

  static constexpr double kRunning = 1e29;

  const headrace::Model& model_;
  const headrace::Tokenizer tokenizer_;
  headrace::Scheduler& scheduler_;
  Clock::time_point start_;
  double next_due_ = 0;
  std::map<std::string, Conversation> conversations_;
  std::map<uint64_t, Running> running_;
  std::map<std::string, Sums> classes_, tenants_;
  Sums total_;
  std::vector<EngineMoment> moments_;
};

}  // namespace

nlohmann::ordered_json replay(const std::vector<TraceRequest>& trace, const headrace::Model& model,
                              headrace::Scheduler& scheduler, ReplayRecord* record) {
  Replay replay(trace, model, scheduler);
  nlohmann::ordered_json result = replay.run();
  if (record != nullptr) *record = replay.take_record();
  return result;
}

std::string replay_table(const nlohmann::ordered_json& result) {
  std::string out;
  char line[256];
  const auto add = [&](const char* kind, const nlohmann::ordered_json& row) {
    const auto& first = row.at("first_token_ms");
    const auto& inter = row.at("inter_token_ms");
    std::snprintf(line, sizeof line, "%-7s %-16.16s %8d %9d %9d %8d %8.1f  %8.0f %8.0f %8.0f  %7.1f %7.1f %7.1f\n",
                  kind, row.at("name").get<std::string>().c_str(), row.at("requests").get<int>(),
                  row.at("prompt_tokens").get<int>(), row.at("cached_tokens").get<int>(),
                  row.at("output_tokens").get<int>(), row.at("tokens_per_second").get<double>(),
                  first.at("p50").get<double>(), first.at("p95").get<double>(), first.at("p99").get<double>(),
                  inter.at("p50").get<double>(), inter.at("p95").get<double>(), inter.at("p99").get<double>());
    out += line;
  };
  std::snprintf(line, sizeof line, "%-7s %-16s %8s %9s %9s %8s %8s  %26s  %23s\n", "", "", "requests", "prompt",
                "cached", "output", "tokens/s", "first token p50/95/99 ms", "next p50/95/99 ms");
  out += line;
  for (const auto& row : result.at("classes")) add("class", row);
  for (const auto& row : result.at("tenants")) add("tenant", row);
  add("", result.at("total"));
  const auto& scheduler = result.at("scheduler");
  std::snprintf(
      line, sizeof line,
      "%.1f s, %d steps of %.1f rows and %.1f sequences, %d preemptions, %d blocks evicted, %d waits for a prefix\n",
      result.at("seconds").get<double>(), scheduler.at("steps").get<int>(), scheduler.at("rows_per_step").get<double>(),
      scheduler.at("sequences_per_step").get<double>(), scheduler.at("preemptions").get<int>(),
      scheduler.at("evictions").get<int>(), scheduler.at("prefix_waits").get<int>());
  return out + line;
}

}  // namespace cli
