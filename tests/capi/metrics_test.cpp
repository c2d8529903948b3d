// Tenants and metrics through the C ABI.
#include <limits>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Request;
using headrace::Scheduler;

Request make_request(const char* tenant, int32_t first, int64_t max_tokens) {
  Request request(text_model());
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(5 + (first + i) % 60);
  request.add_tokens(prompt).set_length(0, max_tokens).set_ignore_eos(true).set_tenant(tenant);
  return request;
}

}  // namespace

TEST_CASE("a scheduler tells what it did, and for whom") {
  Scheduler scheduler(text_model());
  CHECK(scheduler.metrics().step_age_ns == -1);
  CHECK(scheduler.tenants().empty());
  generate(scheduler, make_request("a", 1, 6));
  generate(scheduler, make_request("a", 1, 6));
  generate(scheduler, make_request("", 9, 4));
  const headrace_scheduler_metrics metrics = scheduler.metrics();
  CHECK(metrics.submitted_requests == 3);
  CHECK(metrics.finished_requests == 3);
  CHECK(metrics.length_samples == 3);
  CHECK(metrics.output_tokens == 16);
  CHECK(metrics.prompt_tokens == 120);
  CHECK(metrics.cached_tokens == 32);
  CHECK(metrics.num_tenants == 2);
  CHECK(metrics.step_age_ns >= 0);
  CHECK(metrics.step_ns > 0);
  CHECK(metrics.kv_used_blocks == 0);
  CHECK(metrics.kv_cached_blocks > 0);

  const headrace_latency first = scheduler.latency(HEADRACE_LATENCY_FIRST_TOKEN);
  CHECK(first.count == 3);
  CHECK(first.p50_ns <= first.p95_ns);
  CHECK(first.p95_ns <= first.p99_ns);
  uint64_t counted = 0;
  for (const uint64_t n : first.buckets) counted += n;
  CHECK(counted == 3);
  CHECK(scheduler.latency(HEADRACE_LATENCY_INTER_TOKEN).count == 13);
  CHECK(scheduler.latency(HEADRACE_LATENCY_STEP).count == metrics.num_steps);
  CHECK(scheduler.latency(HEADRACE_LATENCY_QUEUE).count == 3);
  CHECK(headrace_latency_get_bound(0) == 125000);
  CHECK(headrace_latency_get_bound(HEADRACE_LATENCY_BUCKETS - 1) == std::numeric_limits<uint64_t>::max());

  CHECK(scheduler.tenants() == std::vector<std::string>{"", "a"});
  CHECK(scheduler.tenant_metrics("a").output_tokens == 12);
  CHECK(scheduler.tenant_metrics("a").cached_tokens == 32);
  CHECK(scheduler.tenant_metrics("").prompt_tokens == 40);
  CHECK(scheduler.tenant_latency("a", HEADRACE_LATENCY_FIRST_TOKEN).count == 2);
  CHECK(failure_of([&] { scheduler.tenant_metrics("b"); }).code == HEADRACE_NOT_FOUND);
  CHECK(failure_of([&] { scheduler.latency(9); }).place == "kind");
  CHECK(failure_of([&] { scheduler.tenant_latency("a", HEADRACE_LATENCY_STEP); }).place == "kind");
}

TEST_CASE("a finished event says why no more was found in the cache") {
  Scheduler scheduler(text_model());
  const auto miss = [&](const Request& request) {
    scheduler.submit(request);
    std::string found = "no event";
    for (bool working = true; working;) {
      working = scheduler.step();
      while (auto event = scheduler.next_event()) {
        if (event->type() == headrace::EventType::kFinished) found = event->reuse_miss();
        if (event->type() == headrace::EventType::kTokens) CHECK(event->reuse_miss().empty());
      }
    }
    return found;
  };
  CHECK(miss(make_request("", 1, 2)) == "unseen");
  CHECK(miss(make_request("", 1, 2)).empty());
  CHECK(std::string(headrace_event_get_reuse_miss(nullptr)).empty());
}

TEST_CASE("limits of a tenant are refused and hold by name") {
  Scheduler scheduler(text_model());
  headrace::TenantLimits limits;
  limits.max_queue = 1;
  scheduler.set_tenant("a", limits);
  scheduler.submit(make_request("a", 1, 2));
  const Failure full = failure_of([&] { scheduler.submit(make_request("a", 2, 2)); });
  CHECK(full.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(full.place == "tenant");
  scheduler.submit(make_request("b", 2, 2));
  CHECK(finish_all(scheduler).size() == 2);
  CHECK(scheduler.tenant_metrics("a").refused_requests == 1);
  CHECK(scheduler.metrics().refused_requests == 1);

  limits.weight = 0.0;
  CHECK(failure_of([&] { scheduler.set_tenant("a", limits); }).place == "weight");
  limits.weight = 2.0;
  limits.reserved = 1;
  CHECK(failure_of([&] { scheduler.set_tenant("a", limits); }).place == "limits.reserved");
  limits.reserved = 0;
  limits.struct_size = 0;
  CHECK(failure_of([&] { scheduler.set_tenant("a", limits); }).place == "limits.struct_size");
  Request request(text_model());
  CHECK(failure_of([&] { request.set_tenant(std::string(300, 'x')); }).place == "tenant");
  CHECK(failure_of([&] { request.set_tenant(std::string("a\0b", 3)); }).place == "tenant");
}
