// What a scheduler tells of its requests and of each tenant's, and the limits of tenants.
#include <catch2/catch.hpp>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

TEST_CASE("metrics add up to what was asked and told") {
  Toy toy;
  auto scheduler = toy.scheduler();
  CHECK(scheduler->report().step_age_ns == -1);
  RequestParams both = of_tenant("a", prompt_of(64, 1), 10);
  both.n = 2;
  submit(*scheduler, both);
  submit(*scheduler, of_tenant("b", prompt_of(20, 2), 5));
  const uint64_t cancelled = submit(*scheduler, of_tenant("b", prompt_of(20, 3), 0));
  CHECK_FALSE(scheduler->submit(of_tenant("b", {}, 1)).ok());
  CHECK(scheduler->report().metrics.num_waiting == 3);
  for (int i = 0; i < 4; ++i) step(*scheduler);
  REQUIRE(scheduler->cancel(cancelled).ok());
  auto results = run_all(*scheduler);
  submit(*scheduler, of_tenant("a", prompt_of(64, 1), 1));
  run_all(*scheduler);
  toy.executor->fail_runs = 1;
  submit(*scheduler, of_tenant("a", prompt_of(10, 4), 1));
  run_all(*scheduler);

  const SchedulerReport report = scheduler->report();
  const schedule::SchedulerMetrics& m = report.metrics;
  CHECK(m.submitted_requests == 5);
  CHECK(m.refused_requests == 1);
  CHECK(m.finished_requests == 5);
  CHECK(m.failed_requests == 1);
  CHECK(m.length_samples == 4);
  CHECK(m.cancelled_samples == 1);
  CHECK(m.stop_samples == 0);
  CHECK(m.num_waiting == 0);
  CHECK(m.num_running == 0);
  CHECK(m.prompt_tokens == 64 + 20 + 20 + 64 + 10);
  CHECK(m.cached_tokens == 48);
  const auto drawn = static_cast<uint64_t>(results[cancelled].only().usage.output_tokens);
  CHECK(m.output_tokens == 2 * 10 + 5 + drawn + 1);
  CHECK(m.queue.count() == 5);
  CHECK(m.first_token.count() == 5);
  CHECK(m.inter_token.count() == m.output_tokens - m.first_token.count());
  CHECK(m.step.count() == m.num_steps);
  CHECK(m.num_steps == static_cast<uint64_t>(toy.executor->num_runs));
  uint64_t rows = 0;
  for (const int64_t n : toy.executor->rows_of_runs) rows += static_cast<uint64_t>(n);
  CHECK(m.step_rows == rows);
  CHECK(report.step_age_ns >= 0);
  CHECK(report.kv.free_blocks == report.kv.num_blocks);

  CHECK(scheduler->tenants() == std::vector<std::string>{"a", "b"});
  const TenantReport a = *scheduler->tenant("a"), b = *scheduler->tenant("b");
  CHECK(a.metrics.submitted_requests == 3);
  CHECK(b.metrics.submitted_requests == 2);
  CHECK(a.metrics.finished_requests + b.metrics.finished_requests == m.finished_requests);
  CHECK(a.metrics.prompt_tokens + b.metrics.prompt_tokens == m.prompt_tokens);
  CHECK(a.metrics.cached_tokens == 48);
  CHECK(a.metrics.output_tokens + b.metrics.output_tokens == m.output_tokens);
  CHECK(a.metrics.first_token.count() + b.metrics.first_token.count() == 5);
  CHECK(a.metrics.num_waiting + a.metrics.num_running + b.metrics.num_waiting + b.metrics.num_running == 0);
  CHECK(scheduler->tenant("c").status().code() == StatusCode::kNotFound);
}

TEST_CASE("running and waiting sequences are counted with their tenants") {
  Toy toy;
  toy.options.max_num_seqs = 2;
  auto scheduler = toy.scheduler();
  submit(*scheduler, of_tenant("a", prompt_of(10, 1), 0));
  submit(*scheduler, of_tenant("a", prompt_of(10, 2), 0));
  submit(*scheduler, of_tenant("b", prompt_of(10, 3), 0));
  step(*scheduler);
  const TenantReport a = *scheduler->tenant("a"), b = *scheduler->tenant("b");
  CHECK(a.metrics.num_running + b.metrics.num_running == 2);
  CHECK(a.metrics.num_waiting + b.metrics.num_waiting == 1);
  const SchedulerReport report = scheduler->report();
  CHECK(report.metrics.num_running == 2);
  CHECK(report.metrics.num_waiting == 1);
  CHECK(report.max_num_seqs == 2);
  CHECK(report.kv.free_blocks < report.kv.num_blocks);
}

TEST_CASE("a tenant's queue has a limit of its own, by option or by call") {
  Toy toy;
  toy.options.max_num_seqs = 1;
  toy.options.tenant_max_queue = 2;
  auto scheduler = toy.scheduler();
  const auto fill = [&](const std::string& tenant) {
    int accepted = 0;
    for (;; ++accepted) {
      const auto id = scheduler->submit(of_tenant(tenant, prompt_of(5, 1), 3));
      if (id.ok()) continue;
      CHECK(id.status().code() == StatusCode::kResourceExhausted);
      CHECK(id.status().place() == "tenant");
      return accepted;
    }
  };
  CHECK(fill("a") == 2);
  CHECK(fill("b") == 2);
  CHECK(scheduler->tenant("a")->metrics.refused_requests == 1);
  schedule::TenantLimits limits;
  limits.max_queue = 5;
  REQUIRE(scheduler->set_tenant("a", limits).ok());
  CHECK(fill("a") == 3);
  CHECK(scheduler->tenant("a")->limits.max_queue == 5);
  CHECK(run_all(*scheduler).size() == 7);
  CHECK(fill("a") == 5);  // the queue is empty again
  run_all(*scheduler);
}

TEST_CASE("limits and names that make no sense are refused by name") {
  Toy toy;
  auto scheduler = toy.scheduler();
  const auto place = [&](auto change) {
    schedule::TenantLimits limits;
    change(limits);
    const Status status = scheduler->set_tenant("a", limits);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    return status.place();
  };
  CHECK(place([](auto& l) { l.weight = 0.0; }) == "weight");
  CHECK(place([](auto& l) { l.weight = std::nan(""); }) == "weight");
  CHECK(place([](auto& l) { l.max_num_seqs = -1; }) == "max_num_seqs");
  CHECK(place([](auto& l) { l.max_queue = -1; }) == "max_queue");
  CHECK(place([](auto& l) { l.tokens_per_second = -1.0; }) == "tokens_per_second");
  CHECK(scheduler->set_tenant(std::string(257, 'x'), {}).place() == "tenant");
  CHECK(scheduler->submit(of_tenant(std::string("a\0b", 3), prompt_of(5, 1), 1)).status().place() == "tenant");
  CHECK(scheduler->tenants().empty());
}

TEST_CASE("of more tenants than are kept the one unused for the longest time is forgotten") {
  Toy toy;
  toy.options.max_tenants = 3;
  auto scheduler = toy.scheduler();
  REQUIRE(scheduler->set_tenant("kept", {}).ok());
  for (const char* name : {"a", "b"}) submit(*scheduler, of_tenant(name, prompt_of(5, 1), 1));
  // Both have requests yet, and the third has limits.
  CHECK(scheduler->submit(of_tenant("c", prompt_of(5, 1), 1)).status().place() == "scheduler.max_tenants");
  run_all(*scheduler);
  submit(*scheduler, of_tenant("a", prompt_of(5, 1), 1));
  submit(*scheduler, of_tenant("c", prompt_of(5, 1), 1));
  CHECK(scheduler->tenants() == std::vector<std::string>{"a", "c", "kept"});
  CHECK(run_all(*scheduler).size() == 2);
  // What all tenants had is still counted.
  CHECK(scheduler->report().metrics.finished_requests == 4);
}

TEST_CASE("tenants share prefixes, unless their salts differ") {
  Toy toy;
  auto scheduler = toy.scheduler();
  run_one(*scheduler, of_tenant("a", prompt_of(64, 1), 1));
  CHECK(run_one(*scheduler, of_tenant("b", prompt_of(64, 1), 1)).only().usage.cached_tokens == 48);
  RequestParams salted = of_tenant("c", prompt_of(64, 1), 1);
  salted.cache_salt = "c";
  CHECK(run_one(*scheduler, salted).only().usage.cached_tokens == 0);
}

TEST_CASE("usage says why no more of a prompt was found") {
  Toy toy;
  toy.options.kv_max_tokens = 160;
  auto scheduler = toy.scheduler();
  const auto why = [&](std::vector<int32_t> prompt, int32_t prompt_logprobs = -1, const char* salt = "") {
    RequestParams params = request(std::move(prompt), 1);
    params.num_prompt_logprobs = prompt_logprobs;
    params.cache_salt = salt;
    return std::string(reuse_miss_name(run_one(*scheduler, params).only().usage.reuse_miss));
  };
  const auto prompt = prompt_of(65, 1);
  CHECK(why(prompt_of(16, 7)) == "short");  // the only block holds the last token
  CHECK(why(prompt) == "unseen");
  CHECK(why(prompt).empty());
  CHECK(why(prompt, -1, "salt") == "unseen");
  CHECK(why(prompt, 0) == "prompt_logprobs");
  auto longer = prompt;
  longer.resize(100, 3);
  CHECK(why(longer) == "unseen");
  CHECK(why(prompt_of(150, 2)) == "unseen");  // takes the room of the others
  CHECK(why(prompt) == "evicted");

  RequestParams late = request(prompt, 1);
  const uint64_t id = submit(*scheduler, late);
  REQUIRE(scheduler->cancel(id).ok());
  CHECK(run_all(*scheduler)[id].only().usage.reuse_miss == ReuseMiss::kNotScheduled);
  toy.options.kv_prefix_index = false;
  scheduler = toy.scheduler();
  CHECK(why(prompt) == "index_off");
}

TEST_CASE("a request whose events nobody takes waits, others go on, and it ends as if it had not waited") {
  Toy toy;
  toy.options.max_events = 10;
  auto scheduler = toy.scheduler();
  const uint64_t unread = submit(*scheduler, request(prompt_of(20, 1), 60));
  const uint64_t read = submit(*scheduler, request(prompt_of(20, 2), 60));
  std::map<uint64_t, Outcome> results;
  for (int i = 0; i < 200; ++i) {
    step(*scheduler);
    while (auto event = scheduler->next_event_of(read)) results[read].add(*event);
  }
  CHECK(results[read].only().tokens == greedy(endless_logits, prompt_of(20, 2), 60));
  CHECK(scheduler->report().metrics.output_tokens == 60 + 10);
  CHECK(scheduler->report().metrics.num_running == 1);
  auto rest = run_all(*scheduler);
  CHECK(rest[unread].only().tokens == greedy(endless_logits, prompt_of(20, 1), 60));
}
