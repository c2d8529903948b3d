// Laws of the scheduler, on a model whose logits are a function of the tokens that its cache really holds.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "engine/toy_engine.h"
#include "unit/logit_stats.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

TEST_CASE("greedy decoding gives the sequence that the definition gives") {
  Toy toy;
  auto scheduler = toy.scheduler();
  for (const size_t size : {1u, 2u, 15u, 16u, 17u, 600u}) {
    INFO(size);
    const auto prompt = prompt_of(size, size);
    const Outcome result = run_one(*scheduler, request(prompt, 40));
    CHECK(result.only().tokens == greedy(endless_logits, prompt, 40));
    CHECK(result.only().reason == FinishReason::kLength);
    CHECK(result.only().usage.prompt_tokens == static_cast<int64_t>(size));
    CHECK(result.only().usage.output_tokens == 40);
    CHECK(result.only().usage.queue_ns <= result.only().usage.first_token_ns);
    CHECK(result.only().usage.first_token_ns <= result.only().usage.total_ns);
  }
  CHECK(toy.executor->max_rows <= 512);
  CHECK_FALSE(scheduler->kv_cache()->stats().free_blocks < scheduler->kv_cache()->stats().num_blocks);
}

TEST_CASE("32 prompts in one batch give bit for bit what each gives alone") {
  Toy toy;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 32; ++i) {
    RequestParams params = request(prompt_of(5 + 13 * i, 100 + i % 30), 24);
    params.num_logprobs = 5;
    params.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    params.sampling.repetition_penalty = i % 4 == 3 ? 1.3f : 1.0f;
    params.has_seed = true;
    params.sampling.seed = i;
    requests.push_back(params);
  }
  std::vector<Output> alone;
  for (const auto& params : requests) alone.push_back(run_one(*toy.scheduler(), params).only());
  for (const int32_t budget : {7, 33, 512}) {
    toy.options.max_num_batched_tokens = budget;
    auto scheduler = toy.scheduler();
    std::vector<uint64_t> ids;
    for (const auto& params : requests) ids.push_back(submit(*scheduler, params));
    auto results = run_all(*scheduler);
    for (size_t i = 0; i < ids.size(); ++i) {
      INFO("budget " << budget << " request " << i);
      CHECK(results[ids[i]].only() == alone[i]);
    }
  }
}

TEST_CASE("n samples of one seed differ, and the set is the same again and under load") {
  Toy toy;
  const auto make = [&](uint64_t seed) {
    RequestParams params = request(prompt_of(40, 1), 20);
    params.n = 3;
    params.has_seed = true;
    params.sampling.seed = seed;
    params.sampling.temperature = 1.0f;
    return params;
  };
  auto scheduler = toy.scheduler();
  const Outcome first = run_one(*scheduler, make(7));
  REQUIRE(first.samples.size() == 3);
  CHECK(first.samples.at(0).tokens != first.samples.at(1).tokens);
  CHECK(first.samples.at(0).tokens != first.samples.at(2).tokens);
  CHECK(first.samples.at(1).tokens != first.samples.at(2).tokens);
  // The prompt was computed once: 40 rows, and one row for each later token.
  CHECK(scheduler->stats().prefill_tokens == 40);
  CHECK(scheduler->stats().decode_tokens == 3 * 19);

  CHECK(run_one(*scheduler, make(7)).samples == first.samples);
  CHECK_FALSE(run_one(*scheduler, make(8)).samples == first.samples);
  for (uint64_t i = 0; i < 20; ++i) submit(*scheduler, request(prompt_of(30, i), 30));
  const uint64_t id = submit(*scheduler, make(7));
  CHECK(run_all(*scheduler)[id].samples == first.samples);
}

TEST_CASE("without a seed each submit draws anew") {
  Toy toy;
  auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(10, 1), 30);
  params.sampling.temperature = 1.0f;
  CHECK_FALSE(run_one(*scheduler, params).only().tokens == run_one(*scheduler, params).only().tokens);
}

TEST_CASE("the end token, a stop token and the lengths end a sample") {
  const auto prompt = prompt_of(4, 2);
  const std::vector<int32_t> output = {10, 11, 12, 13};
  Toy toy(scripted(4, output));
  auto scheduler = toy.scheduler();

  Output out = run_one(*scheduler, request(prompt, 0)).only();
  CHECK(out.tokens == std::vector<int32_t>{10, 11, 12, 13, kEos});
  CHECK(out.reason == FinishReason::kStop);

  RequestParams params = request(prompt, 4);
  CHECK(run_one(*scheduler, params).only().reason == FinishReason::kLength);

  params = request(prompt, 0);
  params.stop_tokens = {12};
  out = run_one(*scheduler, params).only();
  CHECK(out.tokens == std::vector<int32_t>{10, 11, 12});
  CHECK(out.reason == FinishReason::kStop);

  // Until min_tokens neither comes: the next likely token is drawn instead.
  params.min_tokens = 6;
  params.max_tokens = 8;
  out = run_one(*scheduler, params).only();
  REQUIRE(out.tokens.size() >= 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(out.tokens[i] != 12);
    CHECK(out.tokens[i] != kEos);
  }
  CHECK(out.reason == FinishReason::kStop);

  params = request(prompt, 7);
  params.ignore_eos = true;
  out = run_one(*scheduler, params).only();
  CHECK(out.tokens == std::vector<int32_t>{10, 11, 12, 13, kEos, kEos, kEos});
  CHECK(out.reason == FinishReason::kLength);
}

TEST_CASE("generation ends with length where the context ends") {
  Toy toy(endless_logits, 50);
  auto scheduler = toy.scheduler();
  const Output out = run_one(*scheduler, request(prompt_of(20, 1), 0)).only();
  CHECK(out.tokens.size() == 30);
  CHECK(out.reason == FinishReason::kLength);

  toy.options.kv_max_tokens = 32;  // now the cache is the smaller one
  scheduler = toy.scheduler();
  CHECK(run_one(*scheduler, request(prompt_of(20, 1), 0)).only().tokens.size() == 12);
  CHECK(run_one(*scheduler, request(prompt_of(31, 1), 0)).only().tokens.size() == 1);
  const auto refused = scheduler->submit(request(prompt_of(32, 1), 1));
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  CHECK(refused.status().place() == "prompt");
  CHECK(refused.status().message().find("32") != std::string::npos);
  RequestParams params = request(prompt_of(20, 1), 0);
  params.min_tokens = 13;
  CHECK(scheduler->submit(params).status().place() == "min_tokens");
}

TEST_CASE("prompt logprobs are those of the definition, however the prompt is cut") {
  const auto prompt = prompt_of(70, 9);
  std::vector<float> expected = {0.0f};
  std::vector<float> row(kVocabSize);
  for (size_t i = 1; i < prompt.size(); ++i) {
    endless_logits({prompt.data(), i}, row);
    expected.push_back(score_token(row, test::logit_stats(row), prompt[i], 0)->logprob);
  }
  Toy toy;
  for (const int32_t budget : {1, 7, 64, 512}) {
    INFO(budget);
    toy.options.max_num_batched_tokens = budget;
    auto scheduler = toy.scheduler();
    RequestParams params = request(prompt, 5);
    const auto plain = run_one(*scheduler, params).only().tokens;  // also fills the prefix index
    params.num_prompt_logprobs = 2;
    params.n = budget > 1 ? 2 : 1;
    const Outcome result = run_one(*scheduler, params);
    REQUIRE(result.prompts.size() == 1);
    CHECK(result.all.front().type == EventType::kPrompt);
    CHECK(result.prompts[0].tokens == prompt);
    CHECK(result.prompts[0].logprobs == expected);
    REQUIRE(result.prompts[0].top_logprobs.size() == prompt.size());
    CHECK(result.prompts[0].top_logprobs[0].token_ids.empty());
    CHECK(result.prompts[0].top_logprobs[1].token_ids.size() == 2);
    CHECK(result.samples.at(0).tokens == plain);
  }
  RequestParams single = request({5}, 1);
  single.num_prompt_logprobs = 0;
  const Outcome result = run_one(*toy.scheduler(), single);
  REQUIRE(result.prompts.size() == 1);
  CHECK(result.prompts[0].logprobs == std::vector<float>{0.0f});
}

TEST_CASE("logprobs are there exactly where they were asked for") {
  Toy toy;
  auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(9, 4), 12);
  CHECK(run_one(*scheduler, params).only().logprobs.empty());
  params.num_logprobs = 0;
  Output out = run_one(*scheduler, params).only();
  CHECK(out.logprobs.size() == 12);
  CHECK(out.top_logprobs.empty());
  params.num_logprobs = 3;
  out = run_one(*scheduler, params).only();
  REQUIRE(out.top_logprobs.size() == 12);
  for (size_t i = 0; i < 12; ++i) {
    REQUIRE(out.top_logprobs[i].token_ids.size() == 3);
    CHECK(out.top_logprobs[i].token_ids[0] == out.tokens[i]);  // greedy
    CHECK(out.top_logprobs[i].logprobs[0] == out.logprobs[i]);
  }
}

TEST_CASE("a prompt seen before is found again, but for its last token and another salt's") {
  Toy toy;
  auto scheduler = toy.scheduler();
  const auto prompt = prompt_of(64, 5);
  RequestParams params = request(prompt, 4);
  params.cache_salt = "a";
  const Output cold = run_one(*scheduler, params).only();
  CHECK(cold.usage.cached_tokens == 0);
  const Output warm = run_one(*scheduler, params).only();
  CHECK(warm.usage.cached_tokens == 48);  // the fourth block holds the last prompt token
  CHECK(warm.tokens == cold.tokens);
  params.cache_salt = "b";
  CHECK(run_one(*scheduler, params).only().usage.cached_tokens == 0);
  params.cache_salt = "a";
  params.num_prompt_logprobs = 0;
  CHECK(run_one(*scheduler, params).only().usage.cached_tokens == 0);
}

TEST_CASE("a long prompt holds decoding up by one bounded step at a time") {
  Toy toy;
  toy.options.max_num_batched_tokens = 32;
  auto scheduler = toy.scheduler();
  const uint64_t small = submit(*scheduler, request(prompt_of(4, 1), 60));
  step(*scheduler);
  std::map<uint64_t, Outcome> results;
  drain(*scheduler, results);
  const uint64_t large = submit(*scheduler, request(prompt_of(1000, 2), 2));
  size_t before = results[small].samples[0].tokens.size();
  for (int i = 0; i < 20; ++i) {
    step(*scheduler);
    drain(*scheduler, results);
    CHECK(results[small].samples[0].tokens.size() == ++before);
    CHECK(toy.executor->rows_of_runs.back() == 32);
  }
  CHECK(results[large].all.empty());
  auto rest = run_all(*scheduler);
  CHECK(rest[large].only().tokens == greedy(endless_logits, prompt_of(1000, 2), 2));
}

TEST_CASE("a pool for 1.2 requests runs 50 of them to the outputs each has alone") {
  Toy toy;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 50; ++i) {
    RequestParams params = request(prompt_of(60 + i % 7, i), 90 - static_cast<int64_t>(i % 11));
    params.sampling.temperature = i % 3 == 0 ? 1.0f : 0.0f;
    params.has_seed = true;
    params.sampling.seed = i;
    params.num_logprobs = 1;
    params.n = i % 10 == 9 ? 2 : 1;
    requests.push_back(params);
  }
  std::vector<std::map<uint32_t, Output>> alone;
  for (const auto& params : requests) alone.push_back(run_one(*toy.scheduler(), params).samples);
  for (const bool prefix_index : {true, false}) {
    toy.options.kv_max_tokens = 192;  // 12 blocks; a request needs 10
    toy.options.kv_prefix_index = prefix_index;
    auto scheduler = toy.scheduler();
    std::vector<uint64_t> ids;
    for (const auto& params : requests) ids.push_back(submit(*scheduler, params));
    auto results = run_all(*scheduler);
    for (size_t i = 0; i < ids.size(); ++i) {
      INFO("request " << i);
      CHECK(results[ids[i]].samples == alone[i]);
    }
    CHECK(scheduler->stats().preemptions > 0);
    CHECK(scheduler->kv_cache()->stats().free_blocks == 12);
  }
}

TEST_CASE("the more important and then the earlier request goes first") {
  Toy toy;
  toy.options.max_num_seqs = 1;
  auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(5, 1), 2);
  std::vector<uint64_t> ids;
  for (const int32_t priority : {0, 3, -1, 3}) {
    params.priority = priority;
    ids.push_back(submit(*scheduler, params));
  }
  std::vector<uint64_t> order;
  while (step(*scheduler)) {
  }
  while (auto event = scheduler->next_event()) {
    if (event->is_last) order.push_back(event->request_id);
  }
  CHECK(order == std::vector<uint64_t>{ids[1], ids[3], ids[0], ids[2]});
}

TEST_CASE("a more important request takes the room of a less important one, which still ends right") {
  Toy toy;
  toy.options.kv_max_tokens = 128;
  auto scheduler = toy.scheduler();
  const uint64_t low = submit(*scheduler, request(prompt_of(50, 1), 60));
  for (int i = 0; i < 5; ++i) step(*scheduler);
  RequestParams high = request(prompt_of(20, 2), 80);
  high.priority = 1;
  const uint64_t first = submit(*scheduler, high);
  std::map<uint64_t, Outcome> results;
  bool low_ended_first = false;
  while (step(*scheduler)) {
    drain(*scheduler, results);
    low_ended_first = low_ended_first || (results[low].num_last > 0 && results[first].num_last == 0);
  }
  drain(*scheduler, results);
  CHECK(scheduler->stats().preemptions > 0);
  CHECK_FALSE(low_ended_first);
  CHECK(results[low].only().tokens == greedy(endless_logits, prompt_of(50, 1), 60));
  CHECK(results[first].only().tokens == greedy(endless_logits, prompt_of(20, 2), 80));
}

TEST_CASE("cancelling ends a request in each of its states and frees its blocks") {
  Toy toy;
  toy.options.max_num_batched_tokens = 16;
  toy.options.max_num_seqs = 2;
  auto scheduler = toy.scheduler();
  const int64_t free_blocks = scheduler->kv_cache()->stats().free_blocks;
  const int steps_before = GENERATE(0, 1, 3, 8);
  const uint32_t n = GENERATE(1u, 2u);
  RequestParams params = request(prompt_of(60, 1), 0);
  params.n = n;
  const uint64_t id = submit(*scheduler, params);
  const uint64_t queued = submit(*scheduler, request(prompt_of(60, 2), 0));
  for (int i = 0; i < steps_before; ++i) step(*scheduler);
  REQUIRE(scheduler->cancel(id).ok());
  REQUIRE(scheduler->cancel(queued).ok());
  CHECK_FALSE(step(*scheduler));
  CHECK(scheduler->cancel(id).code() == StatusCode::kNotFound);
  CHECK(scheduler->cancel(77).code() == StatusCode::kNotFound);
  auto results = run_all(*scheduler);
  REQUIRE(results[id].samples.size() == n);
  for (const auto& [index, out] : results[id].samples) CHECK(out.reason == FinishReason::kCancelled);
  CHECK(results[queued].only().reason == FinishReason::kCancelled);
  CHECK(scheduler->kv_cache()->stats().free_blocks == free_blocks);
}

TEST_CASE("a queued request that is cancelled leaves the running one alone") {
  Toy toy;
  toy.options.max_num_seqs = 1;
  auto scheduler = toy.scheduler();
  const uint64_t running = submit(*scheduler, request(prompt_of(10, 1), 20));
  const uint64_t queued = submit(*scheduler, request(prompt_of(10, 2), 20));
  step(*scheduler);
  REQUIRE(scheduler->cancel(queued).ok());
  auto results = run_all(*scheduler);
  CHECK(results[running].only().tokens == greedy(endless_logits, prompt_of(10, 1), 20));
  CHECK(results[queued].only().reason == FinishReason::kCancelled);
  CHECK(results[queued].only().usage.output_tokens == 0);
}

TEST_CASE("a deadline ends a request, queued or running") {
  Toy toy;
  toy.options.max_num_seqs = 1;
  auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(10, 1), 0);
  params.deadline_ms = 5;
  const uint64_t running = submit(*scheduler, params);
  const uint64_t queued = submit(*scheduler, params);
  step(*scheduler);
  std::this_thread::sleep_for(std::chrono::milliseconds(6));
  auto results = run_all(*scheduler);
  CHECK(results[running].only().reason == FinishReason::kDeadline);
  CHECK(results[queued].only().reason == FinishReason::kDeadline);
  params.deadline_ms = std::numeric_limits<int64_t>::max();
  params.max_tokens = 3;
  CHECK(run_one(*scheduler, params).only().reason == FinishReason::kLength);
}

TEST_CASE("the queue has a limit") {
  Toy toy;
  toy.options.max_queue = 3;
  toy.options.max_num_seqs = 1;
  auto scheduler = toy.scheduler();
  const RequestParams params = request(prompt_of(10, 1), 5);
  for (int i = 0; i < 3; ++i) submit(*scheduler, params);
  const auto refused = scheduler->submit(params);
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  CHECK(refused.status().place() == "scheduler.max_queue");
  step(*scheduler);  // one runs now
  submit(*scheduler, params);
  CHECK(scheduler->submit(params).status().code() == StatusCode::kResourceExhausted);
  CHECK(run_all(*scheduler).size() == 4);
}

TEST_CASE("a failing pass fails what took part, and only that") {
  Toy toy;
  toy.options.max_num_seqs = 2;
  auto scheduler = toy.scheduler();
  const int64_t free_blocks = scheduler->kv_cache()->stats().free_blocks;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(submit(*scheduler, request(prompt_of(20, i), 10)));
  step(*scheduler);
  toy.executor->fail_runs = 1;
  auto results = run_all(*scheduler);
  CHECK(results[ids[0]].failure.code() == StatusCode::kInternal);
  CHECK(results[ids[1]].failure.message() == "told to fail");
  CHECK(results[ids[2]].only().tokens == greedy(endless_logits, prompt_of(20, 2), 10));
  CHECK(scheduler->kv_cache()->stats().free_blocks == free_blocks);
  // Nothing of the failed pass is in the prefix index.
  CHECK(run_one(*scheduler, request(prompt_of(20, 0), 10)).only().tokens ==
        greedy(endless_logits, prompt_of(20, 0), 10));
}

TEST_CASE("a request whose logits are not numbers fails alone") {
  const Logits sick = [](std::span<const int32_t> context, std::span<float> logits) {
    endless_logits(context, logits);
    if (context[0] == 1 && context.size() > 12) logits[5] = std::nanf("");
    if (context[0] == 2 && context.size() > 12) logits[5] = INFINITY;
    if (context[0] == 3 && context.size() > 12) std::fill(logits.begin(), logits.end(), -INFINITY);
  };
  Toy toy(sick);
  auto scheduler = toy.scheduler();
  std::vector<uint64_t> ids;
  for (int32_t first = 1; first <= 4; ++first) {
    RequestParams params = request({first, 9, 9, 9}, 20);
    params.n = 2;
    ids.push_back(submit(*scheduler, params));
  }
  auto results = run_all(*scheduler);
  for (size_t i = 0; i < 3; ++i) CHECK_FALSE(results[ids[i]].failure.ok());
  CHECK(results[ids[3]].failure.ok());
  CHECK(results[ids[3]].samples.at(0).tokens == greedy(endless_logits, {4, 9, 9, 9}, 20));
  CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
}

TEST_CASE("rows of logits held at once are bounded while a prompt is scored") {
  Toy toy;
  toy.options.max_num_seqs = 4;
  toy.options.max_num_batched_tokens = 512;
  auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(2000, 1), 1);
  params.num_prompt_logprobs = 0;
  const Outcome result = run_one(*scheduler, params);
  CHECK(result.prompts.at(0).logprobs.size() == 2000);
  CHECK(toy.executor->max_logits_rows <= 512);
}

TEST_CASE("samples are refused that could never run together, and fields that make no sense") {
  Toy toy;
  toy.options.max_num_seqs = 4;
  auto scheduler = toy.scheduler();
  const auto place = [&](auto change) {
    RequestParams params = request(prompt_of(5, 1), 5);
    change(params);
    const auto refused = scheduler->submit(params);
    CHECK(refused.status().code() == StatusCode::kInvalidArgument);
    return refused.status().place();
  };
  CHECK(place([](auto& p) { p.n = 5; }) == "n");
  CHECK(place([](auto& p) { p.prompt.clear(); }) == "prompt");
  CHECK(place([](auto& p) { p.stop_strings = {"x"}; }) == "stop_strings");  // this model has no tokenizer
  CHECK(place([](auto& p) { p.prompt[3] = kVocabSize; }) == "prompt[3]");
  CHECK(run_all(*scheduler).empty());
}

TEST_CASE("storms of submits, cancels and steps end every request once and lose no block") {
  std::mt19937_64 random(11);
  const auto pick = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 12; ++round) {
    Toy toy(round % 2 == 0 ? Logits(endless_logits) : Logits(hashed_logits));
    toy.options.kv_max_tokens = static_cast<int64_t>(16 * pick(8, 40));
    toy.options.kv_prefix_index = pick(0, 3) != 0;
    toy.options.max_num_seqs = static_cast<int32_t>(pick(2, 10));
    toy.options.max_num_batched_tokens = static_cast<int32_t>(pick(4, 100));
    auto scheduler = toy.scheduler();
    std::map<uint64_t, Outcome> results;
    std::map<uint64_t, RequestParams> asked;
    std::vector<uint64_t> cancelled;
    for (int move = 0; move < 700; ++move) {
      const uint64_t what = pick(0, 9);
      if (what < 3) {
        RequestParams params = request(prompt_of(pick(1, 100), pick(0, 20)), static_cast<int64_t>(pick(1, 20)));
        params.n = static_cast<uint32_t>(pick(1, 2));
        params.priority = static_cast<int32_t>(pick(0, 2));
        params.cache_salt = pick(0, 4) == 0 ? "s" : "";
        if (pick(0, 5) == 0) params.num_prompt_logprobs = 1;
        asked[submit(*scheduler, params)] = params;
      } else if (what == 3 && !asked.empty()) {
        auto victim = asked.begin();
        std::advance(victim, static_cast<ptrdiff_t>(pick(0, asked.size() - 1)));
        if (scheduler->cancel(victim->first).ok()) cancelled.push_back(victim->first);
      } else if (what == 4 && pick(0, 30) == 0) {
        toy.executor->fail_runs = 1;
      } else {
        step(*scheduler);
        drain(*scheduler, results);
      }
    }
    while (step(*scheduler)) drain(*scheduler, results);
    drain(*scheduler, results);
    REQUIRE(results.size() == asked.size());
    for (const auto& [id, params] : asked) {
      const Outcome& result = results[id];
      REQUIRE(result.num_last == 1);
      REQUIRE_FALSE(result.after_last);
      if (!result.failure.ok()) continue;
      REQUIRE(result.samples.size() == params.n);
      if (round % 2 == 1) continue;
      const auto expected = greedy(endless_logits, params.prompt, static_cast<size_t>(params.max_tokens));
      for (const auto& [index, out] : result.samples) {
        REQUIRE(out.tokens.size() <= expected.size());
        REQUIRE(std::equal(out.tokens.begin(), out.tokens.end(), expected.begin()));
        if (out.reason == FinishReason::kLength) REQUIRE(out.tokens.size() == expected.size());
        if (out.reason == FinishReason::kCancelled) {
          REQUIRE(std::find(cancelled.begin(), cancelled.end(), id) != cancelled.end());
        }
      }
    }
    const KvCacheStats stats = scheduler->kv_cache()->stats();
    REQUIRE(stats.free_blocks == stats.num_blocks);
  }
}

TEST_CASE("a destroyed scheduler gives everything back, at once or after the step in flight") {
  Toy toy;
  auto cache = toy.cache();
  {
    auto scheduler = toy.scheduler(cache);
    submit(*scheduler, request(prompt_of(50, 1), 0));
    step(*scheduler);
    submit(*scheduler, request(prompt_of(50, 2), 0));
    CHECK(cache->stats().free_blocks < cache->stats().num_blocks);
    scheduler->shut_down();
    CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
    CHECK(scheduler->step().status().code() == StatusCode::kFailedPrecondition);
    CHECK(scheduler->submit(request(prompt_of(5, 1), 1)).status().code() == StatusCode::kFailedPrecondition);
    scheduler->shut_down();
  }
  for (int round = 0; round < 50; ++round) {
    auto scheduler = toy.scheduler(cache);
    for (uint64_t i = 0; i < 8; ++i) submit(*scheduler, request(prompt_of(50, i), 0));
    std::thread stepping([held = scheduler] {
      while (held->step().ok()) {
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(200 * (round % 5)));
    scheduler->shut_down();
    scheduler.reset();
    stepping.join();
    REQUIRE(cache->stats().free_blocks == cache->stats().num_blocks);
  }
}

TEST_CASE("two schedulers share one cache and one model") {
  Toy toy;
  toy.options.kv_max_tokens = 256;
  auto cache = toy.cache();
  auto a = toy.scheduler(cache);
  auto b = toy.scheduler(cache);
  std::map<uint64_t, Outcome> of_a, of_b;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 6; ++i) {
    ids.push_back(submit(*a, request(prompt_of(40, i), 60)));
    REQUIRE(submit(*b, request(prompt_of(40, i), 60)) == ids.back());
  }
  for (bool more = true; more;) {
    const bool more_a = step(*a);
    more = step(*b) || more_a;
    drain(*a, of_a);
    drain(*b, of_b);
  }
  for (uint64_t i = 0; i < 6; ++i) {
    CHECK(of_a[ids[i]].only().tokens == greedy(endless_logits, prompt_of(40, i), 60));
    CHECK(of_b[ids[i]].only().tokens == of_a[ids[i]].only().tokens);
  }
}

TEST_CASE("a scheduler refuses the cache of another model") {
  Toy toy, other;
  other.executor->identity = 2;
  const auto refused = Scheduler::create(toy.model, other.cache(), toy.options);
  CHECK(refused.status().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a prompt's progress is told after each step that had rows of it, and never twice") {
  Toy toy;
  toy.options.max_num_batched_tokens = 40;
  toy.options.kv_max_tokens = 304;  // two prompts, but not with all of their outputs
  const auto scheduler = toy.scheduler();
  RequestParams params = request(prompt_of(100, 1), 3);
  const Outcome silent = run_one(*toy.scheduler(), params);
  params.reports_progress = true;
  const auto told = [](const Outcome& outcome) {
    std::vector<int64_t> computed;
    for (const Event& event : outcome.all) {
      if (event.type != EventType::kProgress) continue;
      CHECK(event.progress.total == 100);
      computed.push_back(event.progress.computed);
    }
    return computed;
  };
  const Outcome first = run_one(*scheduler, params);
  CHECK(told(first) == std::vector<int64_t>{40, 80, 100});
  CHECK(first.all[2].type == EventType::kProgress);  // before the first tokens
  CHECK(first.all[3].type == EventType::kTokens);
  CHECK(first.only().tokens == silent.only().tokens);
  CHECK(told(silent).empty());
  const Outcome warm = run_one(*scheduler, params);
  CHECK(told(warm) == std::vector<int64_t>{100});
  CHECK(warm.all[0].progress.cached == 96);

  // Beside others in a pool too small for all: each says its own, rising, whatever is computed again.
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; ++i) {
    params.prompt = prompt_of(100, static_cast<uint64_t>(10 + i));
    params.max_tokens = 60;
    ids.push_back(submit(*scheduler, params));
  }
  auto outcomes = run_all(*scheduler);
  CHECK(scheduler->report().metrics.preemptions > 0);
  for (const uint64_t id : ids) {
    const std::vector<int64_t> computed = told(outcomes[id]);
    CHECK(std::adjacent_find(computed.begin(), computed.end(), std::greater_equal<>()) == computed.end());
    CHECK(computed.back() == 100);
  }
}
