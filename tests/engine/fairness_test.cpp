// Laws of who waits for whom: the gap that prompts may cause, and the service that tenants share. Steps are counted, or timed on
// the toy's own clock.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

// Cheap, so that long prompts are too.
void last_token_logits(std::span<const int32_t> context, std::span<float> logits) {
  endless_logits(context.last(1), logits);
}

// A step, a row of linear layers and a pair of positions in nanoseconds.
std::function<int64_t(const Batch&)> machine(double step_ns, double row_ns, double pair_ns) {
  return [=](const Batch& batch) {
    double ns = step_ns + row_ns * static_cast<double>(batch.num_tokens());
    for (size_t row = 0; row < batch.token_ids.size(); ++row) ns += pair_ns * (batch.positions[row] + 1.0);
    return static_cast<int64_t>(ns);
  };
}

template <class T>
T quantile(std::vector<T> values, double q) {
  REQUIRE_FALSE(values.empty());
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

// From submit to the first token, of one request after the other.
struct FirstTokens {
  std::vector<int64_t> steps, ns;
};
FirstTokens first_tokens(const Toy& toy, Scheduler& scheduler, const std::string& tenant, int count, size_t prompt_size,
                         int64_t max_tokens, uint64_t seed, const std::function<void()>& before_step = {}) {
  FirstTokens out;
  std::map<uint64_t, Outcome> results;
  for (int i = 0; i < count; ++i) {
    const uint64_t id =
        submit(scheduler, of_tenant(tenant, prompt_of(prompt_size, seed + static_cast<uint64_t>(i)), max_tokens));
    int64_t steps = 0;
    const int64_t submitted_ns = toy.executor->now_ns.load();
    for (bool first = true; results[id].num_last == 0;) {
      if (before_step) before_step();
      step(scheduler);
      drain(scheduler, results);
      ++steps;
      if (first && !results[id].all.empty()) {
        out.steps.push_back(steps);
        out.ns.push_back(toy.executor->now_ns.load() - submitted_ns);
        first = false;
      }
      REQUIRE(steps < 20000);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("a prompt of 16k tokens among 7 decoders stretches the gap between their tokens to 2.5 times at most") {
  // Attention to 16k positions outweighs a row's linear layers on the first; the second reads weights slowly; on the third
  // rows are cheap beside a step; on the fourth a row at the prompt's end takes a third of the step of all decoders.
  const std::function<int64_t(const Batch&)> machines[] = {machine(30e6, 2e6, 200.0), machine(90e6, 6e6, 900.0),
                                                           machine(40e6, 0.2e6, 20.0), machine(15e6, 1.3e6, 400.0)};
  for (const auto& cost : machines) {
    Toy toy(last_token_logits);
    toy.options.kv_max_tokens = 100000;
    toy.options.schedule_mode = ScheduleMode::kBalanced;
    // Of each step, how many times as long it takes as its decoding sequences alone.
    std::vector<double> gaps;
    toy.executor->cost = [&](const Batch& batch) {
      Batch decoding;
      for (size_t i = 0; i + 1 < batch.query_start.size(); ++i) {
        const auto row = static_cast<size_t>(batch.query_start[i]);
        if (batch.query_start[i + 1] - batch.query_start[i] != 1) continue;
        decoding.token_ids.push_back(batch.token_ids[row]);
        decoding.positions.push_back(batch.positions[row]);
      }
      gaps.push_back(static_cast<double>(cost(batch)) / static_cast<double>(cost(decoding)));
      return cost(batch);
    };
    auto scheduler = toy.scheduler();
    for (uint64_t i = 0; i < 7; ++i) submit(*scheduler, request(prompt_of(100, i), 0));
    for (int i = 0; i < 20; ++i) REQUIRE(scheduler->step().ok());
    gaps.clear();
    const uint64_t large = submit(*scheduler, request(prompt_of(16000, 99), 1));
    std::map<uint64_t, Outcome> results;
    while (results[large].num_last == 0) {
      REQUIRE(scheduler->step().ok());
      drain(*scheduler, results);
      REQUIRE(gaps.size() < 10000);
    }
    const double p99 = quantile(gaps, 0.99);
    INFO(gaps.size() << " steps, p99 " << p99 << " of the gap alone");
    CHECK(p99 <= 2.5);
    // The time that was asked for is used: prompts get nearly as much as decoding.
    CHECK(std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size()) >= 1.6);
    CHECK(scheduler->report().metrics.inter_token.count() > 0);
  }
}

TEST_CASE("modes and limits of the gap bound it as they say, and change no output") {
  std::vector<std::vector<int32_t>> outputs;
  std::vector<double> longest;
  const auto run = [&](auto change) {
    Toy toy(endless_logits);
    toy.executor->cost = machine(30e6, 2e6, 200.0);
    change(toy.options);
    auto scheduler = toy.scheduler();
    const uint64_t first = submit(*scheduler, request(prompt_of(50, 1), 60));
    step(*scheduler);
    step(*scheduler);
    const uint64_t second = submit(*scheduler, request(prompt_of(1200, 2), 20));
    toy.executor->ns_of_runs.clear();
    for (int i = 0; i < 10; ++i) step(*scheduler);
    longest.push_back(static_cast<double>(quantile(toy.executor->ns_of_runs, 1.0)) * 1e-6);
    auto results = run_all(*scheduler);
    CHECK(results[first].only().reason == FinishReason::kLength);
    outputs.push_back(results[second].only().tokens);
  };
  run([](EngineOptions& o) { o.schedule_mode = ScheduleMode::kLatency; });
  run([](EngineOptions& o) { o.schedule_mode = ScheduleMode::kBalanced; });
  run([](EngineOptions& o) { o.schedule_mode = ScheduleMode::kThroughput; });
  run([](EngineOptions& o) { o.schedule_mode = ScheduleMode::kBalanced, o.max_gap_percent = 400; });
  run([](EngineOptions& o) { o.schedule_mode = ScheduleMode::kBalanced, o.max_gap_ms = 50; });
  CHECK(longest[0] <= 32.0 * 1.5 * 1.1);
  CHECK(longest[1] <= 32.0 * 2.0 * 1.1);
  CHECK(longest[2] > 500.0);
  CHECK(longest[3] <= 32.0 * 4.0 * 1.1);
  CHECK(longest[3] > 32.0 * 2.5);
  CHECK(longest[4] <= 50.0 * 1.1);
  for (const auto& output : outputs) CHECK(output == greedy(endless_logits, prompt_of(1200, 2), 20));
}

TEST_CASE("several prompts of one tenant get more of a step, and one of a tenant behind") {
  // The longest of the first steps with prompts in it, in times of the decoding sequences alone.
  const auto longest = [](int num_decoders, int num_prompts, const std::string& tenant, auto change) {
    Toy toy(last_token_logits);
    toy.executor->cost = machine(30e6, 1e6, 0.0);
    toy.options.kv_max_tokens = 100000;
    toy.options.schedule_mode = ScheduleMode::kBalanced;
    change(toy.options);
    auto scheduler = toy.scheduler();
    for (int i = 0; i < num_decoders; ++i) {
      submit(*scheduler, of_tenant("own", prompt_of(40, static_cast<uint64_t>(i)), 0));
    }
    for (int i = 0; i < 20; ++i) step(*scheduler);
    const int64_t alone = toy.executor->ns_of_runs.back();
    toy.executor->ns_of_runs.clear();
    for (int i = 0; i < num_prompts; ++i) {
      submit(*scheduler, of_tenant(tenant, prompt_of(2000, 100 + static_cast<uint64_t>(i)), 1));
    }
    for (int i = 0; i < 4; ++i) step(*scheduler);
    return static_cast<double>(quantile(toy.executor->ns_of_runs, 1.0)) / static_cast<double>(alone);
  };
  const auto as_is = [](EngineOptions&) {};
  CHECK(longest(4, 1, "own", as_is) == Approx(2.0).margin(0.1));
  CHECK(longest(4, 2, "own", as_is) == Approx(3.0).margin(0.2));
  CHECK(longest(4, 50, "own", as_is) == Approx(3.0).margin(0.2));
  CHECK(longest(4, 12, "own", [](EngineOptions& o) { o.schedule_mode = ScheduleMode::kLatency; }) ==
        Approx(1.5).margin(0.1));
  CHECK(longest(4, 12, "own", [](EngineOptions& o) { o.max_gap_percent = 200; }) == Approx(2.0).margin(0.1));
  CHECK(longest(4, 12, "own", [](EngineOptions& o) { o.max_burst_gap_percent = 800; }) == Approx(8.0).margin(0.4));
  // Another tenant's burst does not stretch the steps of those that decode, but for the prompt that puts it on a par.
  CHECK(longest(4, 1, "other", as_is) == Approx(3.0).margin(0.2));
  CHECK(longest(4, 12, "other", as_is) <= 3.2);
  CHECK(longest(2, 12, "other", as_is) == Approx(3.0).margin(0.2));
  CHECK(longest(1, 12, "other", as_is) == Approx(3.0).margin(0.2));
  CHECK(longest(4, 1, "other", [](EngineOptions& o) { o.max_tenant_gap_percent = 250; }) == Approx(2.5).margin(0.1));
}

namespace {

struct TenantShape {
  size_t prompt, other_prompt;
  int64_t other_tokens;
  int32_t max_num_seqs;
};
constexpr TenantShape kTenantShapes[] = {{200, 200, 40, 64}, {100, 1500, 30, 16},  {1500, 300, 40, 32},
                                         {40, 40, 300, 8},   {1500, 1500, 20, 64}, {256, 256, 64, 32}};

// Of a tenant with one request at a time, alone, and beside one that keeps 200 queued.
std::pair<FirstTokens, FirstTokens> alone_and_beside(Toy& toy, const TenantShape& shape) {
  toy.options.kv_max_tokens = 200000;
  toy.options.max_num_seqs = shape.max_num_seqs;
  auto quiet = toy.scheduler();
  const auto one_at_a_time = [&](Scheduler& scheduler, const std::function<void()>& before_step) {
    return first_tokens(toy, scheduler, "small", 20, shape.prompt, 8, 1000, before_step);
  };
  FirstTokens alone = one_at_a_time(*quiet, {});
  auto busy = toy.scheduler();
  uint64_t submitted = 0;
  const auto fill = [&] {
    for (; busy->tenants().empty() || submitted < 200 + busy->tenant("large")->metrics.finished_requests; ++submitted) {
      submit(*busy, of_tenant("large", prompt_of(shape.other_prompt, 5000 + submitted), shape.other_tokens));
    }
  };
  for (int i = 0; i < 30; ++i) {
    fill();
    step(*busy);
  }
  toy.executor->ns_of_runs.clear();
  return {std::move(alone), one_at_a_time(*busy, fill)};
}

}  // namespace

TEST_CASE("a tenant with one request at a time beside one with 200 waits at most twice as long as alone, and a step") {
  for (const TenantShape& shape : kTenantShapes) {
    INFO("prompts " << shape.prompt << " and " << shape.other_prompt << ", " << shape.max_num_seqs << " sequences");
    Toy toy(last_token_logits);
    const auto [alone, beside] = alone_and_beside(toy, shape);
    CHECK(quantile(beside.steps, 0.95) <= 2 * quantile(alone.steps, 0.95) + 1);
  }
}

TEST_CASE("the same in time where prompts may only stretch the steps of decoding sequences") {
  // The third computes few rows at twice the time of many.
  const auto slow_few = [](const Batch& batch) {
    const auto rows = static_cast<double>(batch.num_tokens());
    return static_cast<int64_t>(15e6 + 2.4e6 * std::min(rows, 16.0) + 1.2e6 * std::max(rows - 16.0, 0.0));
  };
  const std::function<int64_t(const Batch&)> machines[] = {machine(15e6, 1.3e6, 100.0), machine(40e6, 0.5e6, 20.0),
                                                           slow_few};
  for (size_t i = 0; i < std::size(machines); ++i) {
    for (const size_t which : {1, 3, 5}) {
      const TenantShape& shape = kTenantShapes[which];
      INFO("machine " << i << ", prompts " << shape.prompt << " and " << shape.other_prompt << ", "
                      << shape.max_num_seqs << " sequences");
      Toy toy(last_token_logits);
      toy.options.schedule_mode = ScheduleMode::kBalanced;
      toy.executor->cost = machines[i];
      const auto [alone, beside] = alone_and_beside(toy, shape);
      const int64_t step_ns = quantile(toy.executor->ns_of_runs, 1.0);
      CHECK(quantile(beside.ns, 0.95) <= 2 * quantile(alone.ns, 0.95) + step_ns);
    }
  }
}

TEST_CASE("a burst of another tenant stretches the gap between tokens to three times a step of all that may decode") {
  const double step_ns = 15e6, row_ns = 1.3e6, pair_ns = 400.0;
  for (const TenantShape& shape : kTenantShapes) {
    for (const int32_t limit : {0, 3}) {
      INFO("prompts of " << shape.other_prompt << ", " << shape.max_num_seqs << " sequences, " << limit
                         << " of the burst");
      Toy toy(last_token_logits);
      toy.options.kv_max_tokens = 200000;
      toy.options.max_num_seqs = shape.max_num_seqs;
      toy.options.schedule_mode = ScheduleMode::kBalanced;
      toy.executor->cost = machine(step_ns, row_ns, pair_ns);
      auto scheduler = toy.scheduler();
      schedule::TenantLimits burst;
      burst.max_num_seqs = limit;
      REQUIRE(scheduler->set_tenant("large", burst).ok());
      const uint64_t steady = submit(*scheduler, of_tenant("small", prompt_of(shape.prompt, 1), 0));
      for (int i = 0; i < 20; ++i) step(*scheduler);
      uint64_t submitted = 0;
      std::map<uint64_t, Outcome> results;
      std::vector<double> gaps;
      int64_t last_ns = toy.executor->now_ns.load();
      for (size_t seen = results[steady].all.size(); gaps.size() < 600;) {
        for (; submitted < 200 + scheduler->tenant("large")->metrics.finished_requests; ++submitted) {
          submit(*scheduler, of_tenant("large", prompt_of(shape.other_prompt, 5000 + submitted), shape.other_tokens));
        }
        step(*scheduler);
        drain(*scheduler, results);
        const int64_t now_ns = toy.executor->now_ns.load();
        if (std::exchange(seen, results[steady].all.size()) == seen) continue;
        gaps.push_back(static_cast<double>(now_ns - std::exchange(last_ns, now_ns)));
      }
      const double sequences = limit > 0 ? limit + 1 : shape.max_num_seqs;
      const double context = static_cast<double>(shape.other_prompt) + static_cast<double>(shape.other_tokens);
      const double all_decode = step_ns + sequences * (row_ns + pair_ns * context);
      CHECK(scheduler->tenant("large")->metrics.finished_requests > 2);
      CHECK(quantile(gaps, 0.99) <= 3.0 * all_decode * 1.05);
    }
  }
}

TEST_CASE("tenants that keep waiting are served by their weights") {
  Toy toy(last_token_logits);
  toy.options.kv_max_tokens = 100000;
  toy.options.max_num_seqs = 8;
  toy.options.max_num_batched_tokens = 64;
  auto scheduler = toy.scheduler();
  schedule::TenantLimits heavy;
  heavy.weight = 3.0;
  REQUIRE(scheduler->set_tenant("heavy", heavy).ok());
  for (uint64_t i = 0; i < 400; ++i) {
    submit(*scheduler, of_tenant("light", prompt_of(60 + i % 40, i), 10));
    submit(*scheduler, of_tenant("heavy", prompt_of(60 + i % 40, 1000 + i), 10));
  }
  for (int i = 0; i < 150; ++i) step(*scheduler);
  const double light_service = scheduler->tenant("light")->metrics.service;
  const double heavy_service = scheduler->tenant("heavy")->metrics.service;
  INFO(heavy_service << " and " << light_service);
  REQUIRE(scheduler->tenant("heavy")->metrics.num_waiting > 0);
  CHECK(heavy_service / light_service > 2.6);
  CHECK(heavy_service / light_service < 3.4);
}

TEST_CASE("a tenant that rested saved nothing up") {
  Toy toy(last_token_logits);
  toy.options.kv_max_tokens = 100000;
  toy.options.max_num_batched_tokens = 64;
  toy.options.max_num_seqs = 8;
  auto scheduler = toy.scheduler();
  for (uint64_t i = 0; i < 300; ++i) submit(*scheduler, of_tenant("a", prompt_of(64, i), 4));
  for (int i = 0; i < 100; ++i) step(*scheduler);
  const double before = scheduler->tenant("a")->metrics.service;
  for (uint64_t i = 0; i < 300; ++i) submit(*scheduler, of_tenant("b", prompt_of(64, 1000 + i), 4));
  for (int i = 0; i < 100; ++i) step(*scheduler);
  const double a = scheduler->tenant("a")->metrics.service - before, b = scheduler->tenant("b")->metrics.service;
  INFO(a << " and " << b);
  CHECK(a / b > 0.8);
  CHECK(a / b < 1.25);
}

TEST_CASE("what a tenant finds cached is not counted as service, nor what is computed again") {
  Toy toy(last_token_logits);
  auto scheduler = toy.scheduler();
  run_one(*scheduler, of_tenant("a", prompt_of(100, 1), 1));
  CHECK(scheduler->tenant("a")->metrics.service == 100.0 + 2.0);
  run_one(*scheduler, of_tenant("a", prompt_of(100, 1), 1));
  CHECK(scheduler->tenant("a")->metrics.service == 102.0 + 4.0 + 2.0);  // 96 of 100 were there

  toy.options.kv_max_tokens = 192;
  toy.options.kv_prefix_index = false;
  scheduler = toy.scheduler();
  for (uint64_t i = 0; i < 6; ++i) submit(*scheduler, of_tenant("a", prompt_of(60, i), 80));
  run_all(*scheduler);
  REQUIRE(scheduler->stats().preemptions > 0);
  CHECK(scheduler->tenant("a")->metrics.service == 6 * (60.0 + 2.0 * 80.0));
}

TEST_CASE("a tenant's rate and its sequences at once are held to its limits") {
  Toy toy(last_token_logits);
  toy.executor->cost = machine(10e6, 0.0, 0.0);  // 100 steps a second
  auto scheduler = toy.scheduler();
  schedule::TenantLimits slow;
  slow.tokens_per_second = 1000.0;
  REQUIRE(scheduler->set_tenant("slow", slow).ok());
  schedule::TenantLimits narrow;
  narrow.max_num_seqs = 2;
  REQUIRE(scheduler->set_tenant("narrow", narrow).ok());
  for (uint64_t i = 0; i < 40; ++i) {
    submit(*scheduler, of_tenant("slow", prompt_of(100, i), 1));
    submit(*scheduler, of_tenant("narrow", prompt_of(100, 100 + i), 10));
  }
  bool waits = true;
  while (waits) {
    step(*scheduler);
    const TenantReport report = *scheduler->tenant("narrow");
    CHECK(report.metrics.num_running <= 2);
    waits = report.metrics.num_waiting + report.metrics.num_running > 0;
  }
  // A second's worth at first, then by the clock, and the last request may begin with an allowance above 0.
  const double seconds = static_cast<double>(toy.executor->now_ns.load()) * 1e-9;
  CHECK(scheduler->tenant("slow")->metrics.service <= 1000.0 * (1.0 + seconds) + 102.0);
  // Where nothing else runs, time alone lets it go on.
  for (int i = 0; i < 100000 && scheduler->tenant("slow")->metrics.finished_requests < 40; ++i) {
    toy.executor->now_ns += 5'000'000;
    step(*scheduler);
  }
  CHECK(scheduler->tenant("slow")->metrics.finished_requests == 40);
}

TEST_CASE("of waiting requests the one with the longest cached prefix goes first, and overtakes so often only") {
  Toy toy(last_token_logits);
  toy.options.max_num_seqs = 1;
  toy.options.max_overtakes = 3;
  auto scheduler = toy.scheduler();
  auto shared = prompt_of(160, 1);
  run_one(*scheduler, request(shared, 1));
  std::vector<uint64_t> fresh, warm;
  for (uint64_t i = 0; i < 2; ++i) fresh.push_back(submit(*scheduler, request(prompt_of(100, 10 + i), 2)));
  for (int32_t i = 0; i < 5; ++i) {
    auto prompt = shared;
    prompt.push_back(10 + i);
    warm.push_back(submit(*scheduler, request(prompt, 2)));
  }
  std::vector<uint64_t> order;
  while (step(*scheduler)) {
  }
  while (auto event = scheduler->next_event()) {
    if (event->is_last) order.push_back(event->request_id);
  }
  CHECK(order == std::vector<uint64_t>{warm[0], warm[1], warm[2], fresh[0], fresh[1], warm[3], warm[4]});
  // One that is more important is not overtaken.
  RequestParams important = request(prompt_of(100, 20), 2);
  important.priority = 1;
  const uint64_t first = submit(*scheduler, important);
  const uint64_t second = submit(*scheduler, request(shared, 2));
  order.clear();
  while (step(*scheduler)) {
  }
  while (auto event = scheduler->next_event()) {
    if (event->is_last) order.push_back(event->request_id);
  }
  CHECK(order == std::vector<uint64_t>{first, second});
}
