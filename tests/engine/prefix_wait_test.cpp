// Requests with a common new prefix compute it once; pinned sessions keep their blocks; whatever happens, all come to an end.
#include <catch2/catch.hpp>

#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

std::vector<int32_t> after(std::vector<int32_t> prompt, size_t size, uint64_t seed) {
  const auto more = prompt_of(size, seed);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

}  // namespace

TEST_CASE("a new prefix that many requests have is computed once") {
  Toy toy;
  toy.options.max_num_batched_tokens = 64;
  auto scheduler = toy.scheduler();
  const auto prefix = prompt_of(160, 1);
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 8; ++i) ids.push_back(submit(*scheduler, request(after(prefix, 10, 50 + i), 5)));
  auto results = run_all(*scheduler);
  for (uint64_t i = 0; i < 8; ++i) {
    CHECK(results[ids[i]].only().tokens == greedy(endless_logits, after(prefix, 10, 50 + i), 5));
    CHECK(results[ids[i]].only().usage.cached_tokens == (i == 0 ? 0 : 160));
  }
  CHECK(scheduler->report().metrics.computed_tokens == 160 + 8 * 10);
  CHECK(scheduler->report().metrics.prefix_waits == 7);
}

TEST_CASE("what is not shared does not wait, nor what another tenant, salt or missing index sets apart") {
  const auto prefix = prompt_of(160, 1);
  const auto waits = [&](auto change, bool index = true) {
    Toy toy;
    toy.options.max_num_batched_tokens = 64;
    toy.options.kv_prefix_index = index;
    auto scheduler = toy.scheduler();
    submit(*scheduler, request(after(prefix, 10, 50), 5));
    RequestParams second = request(after(prefix, 10, 51), 5);
    change(second);
    submit(*scheduler, second);
    run_all(*scheduler);
    return scheduler->report().metrics.prefix_waits;
  };
  CHECK(waits([](RequestParams&) {}) == 1);
  CHECK(waits([](RequestParams& p) { p.prompt = prompt_of(170, 2); }) == 0);
  CHECK(waits([](RequestParams& p) { p.prompt = after({p.prompt.begin(), p.prompt.begin() + 15}, 60, 3); }) == 0);
  CHECK(waits([](RequestParams& p) { p.tenant = "other"; }) == 0);
  CHECK(waits([](RequestParams& p) { p.cache_salt = "s"; }) == 0);
  CHECK(waits([](RequestParams& p) { p.num_prompt_logprobs = 0; }) == 0);
  CHECK(waits([](RequestParams&) {}, false) == 0);
}

TEST_CASE("others go before a request that waits for a prefix, and it goes on when that is not computed after all") {
  Toy toy;
  toy.options.max_num_batched_tokens = 32;
  auto scheduler = toy.scheduler();
  const auto prefix = prompt_of(320, 1);
  const uint64_t first = submit(*scheduler, request(after(prefix, 10, 50), 5));
  const uint64_t second = submit(*scheduler, request(after(prefix, 10, 51), 5));
  for (int i = 0; i < 3; ++i) step(*scheduler);
  const uint64_t other = submit(*scheduler, request(prompt_of(20, 7), 5));
  REQUIRE(scheduler->report().metrics.num_waiting == 2);
  REQUIRE(scheduler->cancel(first).ok());
  auto results = run_all(*scheduler);
  CHECK(results[first].only().reason == FinishReason::kCancelled);
  CHECK(results[second].only().tokens == greedy(endless_logits, after(prefix, 10, 51), 5));
  CHECK(results[second].only().usage.cached_tokens == 96);  // what three steps had computed
  CHECK(results[other].only().tokens == greedy(endless_logits, prompt_of(20, 7), 5));
}

TEST_CASE("a pool for 1.2 requests runs 100 of three tenants with common prefixes to the outputs each has alone") {
  Toy toy;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 100; ++i) {
    RequestParams params = request(after(prompt_of(40, i % 5), 20 + i % 7, 100 + i), 90 - static_cast<int64_t>(i % 11));
    params.n = i % 10 == 9 ? 2 : 1;
    params.tenant = std::string(1, static_cast<char>('a' + i % 3));
    params.priority = static_cast<int32_t>(i % 2);
    requests.push_back(params);
  }
  for (const ScheduleMode mode : {ScheduleMode::kThroughput, ScheduleMode::kLatency}) {
    toy.options.schedule_mode = mode;
    toy.options.kv_max_tokens = 192;  // 12 blocks; a request needs 10
    auto scheduler = toy.scheduler();
    std::vector<uint64_t> ids;
    for (const auto& params : requests) ids.push_back(submit(*scheduler, params));
    auto results = run_all(*scheduler);
    for (size_t i = 0; i < ids.size(); ++i) {
      INFO("request " << i);
      const auto expected = greedy(endless_logits, requests[i].prompt, static_cast<size_t>(requests[i].max_tokens));
      REQUIRE(results[ids[i]].samples.size() == requests[i].n);
      for (const auto& [index, out] : results[ids[i]].samples) CHECK(out.tokens == expected);
    }
    CHECK(scheduler->stats().preemptions > 0);
    CHECK(scheduler->kv_cache()->stats().free_blocks == 12);
  }
}

TEST_CASE("an idle pinned session keeps its values, and what then finds no room is told so") {
  Toy toy;
  toy.options.kv_max_tokens = 160;  // 10 blocks
  auto cache = toy.cache();
  auto scheduler = toy.scheduler(cache);
  auto session = toy.session(cache);
  REQUIRE(session->evaluate(prompt_of(80, 1), nullptr).ok());
  session->set_pinned(true);
  CHECK(run_one(*scheduler, request(prompt_of(60, 2), 10)).only().tokens.size() == 10);
  const Outcome large = run_one(*scheduler, request(prompt_of(100, 3), 10));
  CHECK(large.failure.code() == StatusCode::kResourceExhausted);
  CHECK(large.failure.place() == "kv cache");
  CHECK(large.failure.message().find("5 of 10") != std::string::npos);
  // One that grows beyond the room fails where it does.
  CHECK(run_one(*scheduler, request(prompt_of(60, 4), 60)).failure.code() == StatusCode::kResourceExhausted);
  // The session still has all of it: nothing of its prompt is computed again.
  RequestParams on_session = request({5}, 3);
  on_session.session = session;
  CHECK(run_one(*scheduler, on_session).only().usage.cached_tokens == 80);
  session->set_pinned(false);
  CHECK(run_one(*scheduler, request(prompt_of(100, 3), 10)).only().tokens.size() == 10);
}
