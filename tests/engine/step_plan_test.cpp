// The step's budget: pure arithmetic.
#include <catch2/catch.hpp>

#include <random>

#include "schedule/invariants.h"
#include "schedule/request_queue.h"
#include "schedule/step_plan.h"
#include "schedule/tenant.h"

using namespace headrace::schedule;

namespace {

StepDemand prompt(int64_t rows, int32_t slots = 1) { return {rows, rows - 1, slots}; }
StepDemand decode() { return {1, 0, 1}; }

// As a step plans: decoding sequences first, then prompts in order.
std::vector<StepGrant> plan_running(StepBudget& budget, const std::vector<StepDemand>& demands) {
  std::vector<StepGrant> grants(demands.size());
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < demands.size(); ++i) {
      if (demands[i].decoding() == decoding) grants[i] = budget.take(demands[i]);
    }
  }
  return grants;
}

}  // namespace

TEST_CASE("decoding sequences go first whatever their place, prompts share the rest in order") {
  StepBudget budget({.max_num_batched_tokens = 32, .max_num_seqs = 8, .max_logits_rows = 100});
  const auto grants = plan_running(budget, std::vector{prompt(1000), decode(), prompt(10), decode()});
  CHECK(grants[1].num_rows == 1);
  CHECK(grants[3].num_rows == 1);
  CHECK(grants[0].num_rows == 30);
  CHECK(grants[0].num_logits_rows == 0);
  CHECK(grants[2].num_rows == 0);
  CHECK(budget.rows_left() == 0);
}

TEST_CASE("a span that must not be cut is granted whole or not at all") {
  const RowSpan spans[] = {{10, 20}, {30, 90}};
  const auto ask = [&](int64_t first_row, int64_t rows_left) {
    StepBudget budget({.max_num_batched_tokens = rows_left, .max_num_seqs = 8, .max_logits_rows = 100});
    StepDemand demand = prompt(100 - first_row);
    demand.first_row = first_row;
    demand.uncut = spans;
    const StepGrant grant = budget.take(demand);
    if (grant.num_rows > rows_left) CHECK(budget.rows_left() < 0);
    CHECK(budget.take(prompt(10)).num_rows <= std::max<int64_t>(rows_left - grant.num_rows, 0));
    return grant.num_rows;
  };
  CHECK(ask(0, 10) == 10);
  CHECK(ask(0, 15) == 10);
  CHECK(ask(0, 20) == 20);
  CHECK(ask(0, 25) == 25);
  CHECK(ask(0, 35) == 30);
  CHECK(ask(0, 100) == 100);
  CHECK(ask(10, 1) == 10);
  CHECK(ask(30, 32) == 60);  // more than the step has, rather than never
  CHECK(ask(14, 3) == 6);    // its front came from the prefix index
  CHECK(ask(95, 3) == 3);
}

TEST_CASE("the last row of a prompt has logits, earlier ones only where they are wanted") {
  StepBudget budget({.max_num_batched_tokens = 100, .max_num_seqs = 8, .max_logits_rows = 100});
  CHECK(budget.take(prompt(10)).num_logits_rows == 1);
  const StepGrant scored = budget.take({20, 5, 1});
  CHECK(scored.num_rows == 20);
  CHECK(scored.num_logits_rows == 15);
}

TEST_CASE("rows of logits are bounded and a scored prompt is cut to them") {
  StepBudget budget({.max_num_batched_tokens = 512, .max_num_seqs = 8, .max_logits_rows = 9});
  CHECK(budget.take(decode()).num_rows == 1);
  const StepGrant scored = budget.take({100, 3, 1});
  CHECK(scored.num_rows == 11);  // 3 silent ones and the 8 that are left
  CHECK(scored.num_logits_rows == 8);
  CHECK(budget.take(decode()).num_rows == 0);
  const StepGrant silent = budget.take(prompt(50));
  CHECK(silent.num_rows == 49);  // its last row would need logits
  CHECK(silent.num_logits_rows == 0);
}

TEST_CASE("slots count what a prompt will become") {
  StepBudget budget({.max_num_batched_tokens = 512, .max_num_seqs = 4, .max_logits_rows = 100});
  CHECK(budget.take(prompt(5, 3)).num_rows == 5);
  CHECK(budget.take(prompt(5, 2)).num_rows == 0);
  CHECK(budget.take(decode()).num_rows == 1);
  CHECK(budget.seqs_left() == 0);
}

TEST_CASE("a refund undoes a grant") {
  StepBudget budget({.max_num_batched_tokens = 10, .max_num_seqs = 2, .max_logits_rows = 2});
  const StepDemand demand = prompt(30);
  const StepGrant grant = budget.take(demand);
  CHECK(grant.num_rows == 10);
  budget.refund(grant, demand);
  CHECK(budget.rows_left() == 10);
  CHECK(budget.seqs_left() == 2);
  CHECK(budget.take(prompt(4)).num_rows == 4);
}

TEST_CASE("no plan exceeds its limits and none starves the first demand") {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    StepLimits limits{pick(1, 40), pick(1, 8), 0};
    limits.max_num_seqs = std::min(limits.max_num_seqs, limits.max_num_batched_tokens);
    limits.max_logits_rows = limits.max_num_seqs + pick(0, 10);
    std::vector<StepDemand> demands;
    for (int64_t n = pick(1, limits.max_num_seqs); n > 0; --n) {
      const int64_t rows = pick(0, 1) == 0 ? 1 : pick(1, 60);
      demands.push_back({rows, pick(0, rows - 1), 1});
    }
    StepBudget budget(limits);
    const auto grants = plan_running(budget, demands);
    int64_t rows = 0, logits = 0, decoders = 0;
    for (size_t i = 0; i < grants.size(); ++i) {
      REQUIRE(grants[i].num_rows <= demands[i].num_pending);
      REQUIRE(grants[i].num_logits_rows == std::max<int64_t>(0, grants[i].num_rows - demands[i].num_silent));
      rows += grants[i].num_rows;
      logits += grants[i].num_logits_rows;
      if (demands[i].decoding()) {
        ++decoders;
        REQUIRE(grants[i].num_rows == 1);  // they all fit: max_num_seqs is at most the budget
      }
    }
    REQUIRE(rows <= limits.max_num_batched_tokens);
    REQUIRE(logits <= limits.max_logits_rows);
    REQUIRE(rows > 0);
  }
}

TEST_CASE("the queue is ordered by rank, arrival and sample, each tenant's apart") {
  Tenant a("a"), b("b");
  std::vector<Sequence> sequences(4);
  sequences[0].order = {0, 1, 0};
  sequences[1].order = {0, 2, 1};
  sequences[2].order = {-5, 9, 0};
  sequences[3].order = {0, 2, 0};
  for (size_t i = 0; i < 4; ++i) sequences[i].tenant = i == 1 ? &b : &a;
  RequestQueue queue;
  for (Sequence& s : sequences) CHECK(queue.push(&s));
  CHECK_FALSE(queue.push(&sequences[0]));
  CHECK(queue.size() == 4);
  const auto listed = [](const RequestQueue::Line& line) { return std::vector<Sequence*>(line.begin(), line.end()); };
  CHECK(listed(queue.all()) == std::vector<Sequence*>{&sequences[2], &sequences[0], &sequences[3], &sequences[1]});
  CHECK(listed(*queue.line(&a)) == std::vector<Sequence*>{&sequences[2], &sequences[0], &sequences[3]});
  CHECK(listed(*queue.line(&b)) == std::vector<Sequence*>{&sequences[1]});
  CHECK(queue.remove(&sequences[1]));
  CHECK(queue.line(&b) == nullptr);
  CHECK(queue.remove(&sequences[2]));
  CHECK_FALSE(queue.remove(&sequences[2]));
  CHECK(listed(queue.all()) == std::vector<Sequence*>{&sequences[0], &sequences[3]});
  for (const size_t i : {0, 3}) CHECK(queue.remove(&sequences[i]));
  CHECK(queue.empty());
  CHECK(queue.line(&a) == nullptr);
}

TEST_CASE("waiting is worth priorities, and the order of two never changes while they wait") {
  // Priority 1 that came 9 seconds later goes first, 11 seconds later not.
  CHECK(rank_of(1, 9'000'000, 10'000'000) < rank_of(0, 0, 10'000'000));
  CHECK(rank_of(1, 11'000'000, 10'000'000) > rank_of(0, 0, 10'000'000));
  CHECK(rank_of(1, 1'000'000'000, 0) < rank_of(0, 0, 0));
  CHECK(rank_of(5, 7, 0) == rank_of(5, 8, 0));
}

TEST_CASE("prompts beside decoding sequences are cut by time, but for their least rows") {
  // A step of 8 ms, 1 ms a row, 1 us a pair.
  const CostModel cost({8e6, 1e6, 1e3});
  const auto ask = [&](int64_t first_row, double ns, int64_t min_rows) {
    StepBudget budget({.max_num_batched_tokens = 512, .max_num_seqs = 8, .max_logits_rows = 100}, &cost);
    budget.take(decode());
    budget.limit_prompts(ns, min_rows);
    StepDemand demand = prompt(1000);
    demand.first_row = first_row;
    const int64_t rows = budget.take(demand).num_rows;
    // What is left is not worth a row, and is the same again after a refund.
    StepDemand second = prompt(1000);
    second.first_row = first_row;
    CHECK(budget.take(second).num_rows == 0);
    return rows;
  };
  CHECK(ask(0, 100e6, 1) == 95);     // 95 rows and 4560 pairs
  CHECK(ask(1000, 100e6, 1) == 49);  // half of it is attention
  CHECK(ask(16000, 100e6, 1) == 5);
  CHECK(ask(0, -5.0, 8) == 8);
  CHECK(ask(16000, -5.0, 40) == 2);  // what takes as long
  CHECK(ask(16000, -5.0, 8) == 1);
  CHECK(ask(16000, 100e6, 8) == 5);
  StepBudget budget({.max_num_batched_tokens = 512, .max_num_seqs = 8, .max_logits_rows = 100}, &cost);
  budget.limit_prompts(10e6, 1);
  CHECK_FALSE(budget.full());
  const StepDemand demand = prompt(100);
  const StepGrant grant = budget.take(demand);
  CHECK(budget.full());
  budget.refund(grant, demand);
  CHECK_FALSE(budget.full());
  CHECK(budget.work().rows == 0.0);
  CHECK(budget.take(decode()).num_rows == 1);  // decoding ones are not held to it
}

TEST_CASE("the validator sees each broken law") {
  SchedulerSnapshot good;
  good.max_num_seqs = 2;
  good.context_limit = 100;
  good.block_size = 16;
  good.pool_blocks = 8;
  good.free_blocks = 5;
  SequenceSnapshot runs;
  runs.request_id = 1;
  runs.state = SequenceState::kRunning;
  runs.in_running = true;
  runs.num_tokens = 20;
  runs.prompt_size = 18;
  runs.num_computed = 19;
  runs.num_blocks = 2;
  SequenceSnapshot waits = runs;
  waits.request_id = 2;
  waits.state = SequenceState::kWaiting;
  waits.in_running = false;
  waits.in_queue = true;
  waits.num_computed = waits.num_blocks = 0;
  good.sequences = {runs, waits};
  REQUIRE(check_invariants(good).ok());

  const auto broken = [&](auto change) {
    SchedulerSnapshot bad = good;
    change(bad);
    const headrace::Status status = check_invariants(bad);
    return status.code() == headrace::StatusCode::kInternal;
  };
  CHECK(broken([](auto& s) { s.sequences[0].in_queue = true; }));
  CHECK(broken([](auto& s) { s.sequences[0].in_running = false; }));
  CHECK(broken([](auto& s) { s.sequences[0].num_computed = 33; }));
  CHECK(broken([](auto& s) { s.sequences[0].num_computed = 20; }));
  CHECK(broken([](auto& s) { s.sequences[0].num_tokens = 101; }));
  CHECK(broken([](auto& s) { s.sequences[0].slots = 3; }));
  CHECK(broken([](auto& s) { s.sequences[0].last_event_sent = true; }));
  CHECK(broken([](auto& s) { s.sequences[1].state = SequenceState::kFinished; }));
  CHECK(broken([](auto& s) {
    s.sequences[1].state = SequenceState::kPreempted;
    s.sequences[1].num_blocks = 1;
  }));
  CHECK(broken([](auto& s) { s.sequences[1].request_id = 1; }));
  CHECK(broken([](auto& s) { s.free_blocks = 9; }));
}
