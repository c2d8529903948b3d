// Speculation on the toy model: whatever is guessed, requests get what plain decoding gives, and nothing is lost on the way.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/guessing_drafter.h"
#include "engine/toy_engine.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;
using speculation::Guessing;
using speculation::GuessingDrafter;

namespace {

// Few tokens, so that texts repeat themselves: what n-grams and suffixes live on.
void repeating_logits(std::span<const int32_t> context, std::span<float> logits) {
  const auto last = context.last(std::min<size_t>(context.size(), 3));
  hashed_logits(last, logits);
  for (size_t id = 8; id < logits.size(); ++id) logits[id] -= 3.0f;
  logits[kEos] = -10.0f;
}

GuessingDrafter::Oracle oracle_of(const Logits& logits) {
  return [logits](std::span<const int32_t> context) {
    std::vector<float> row(kVocabSize);
    logits(context, row);
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  };
}

struct Speculating {
  Toy toy;
  std::vector<std::shared_ptr<GuessingDrafter>> drafters;

  explicit Speculating(const Logits& logits = repeating_logits, bool with_text = false)
      : toy(logits, 1 << 20, with_text), drafters(speculation::guessing_drafters(kVocabSize, oracle_of(logits))) {
    toy.options.draft_always = true;
  }
  std::shared_ptr<Scheduler> scheduler(std::shared_ptr<KvCache> cache = nullptr) const {
    auto made = Scheduler::create(toy.model, std::move(cache), toy.options, {drafters.begin(), drafters.end()});
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    return made.take();
  }
};

// g6 and g8 draw their guesses: with them the text of a seed is another of the same distribution.
const std::vector<std::string> kDrafters = {
    "ngram", "suffix", "g0", "g1", "g2", "g3", "g4", "g5", "g7", "ngram,g1,g5", "ngram,suffix,g0,g1,g2,g3,g4,g5,g7"};

// The same requests without and with each drafter, all in one batch.
void check_equal(Speculating& world, const std::vector<RequestParams>& requests,
                 const std::vector<std::string>& drafters = kDrafters) {
  const auto run = [&](const std::string& drafter) {
    const auto scheduler = world.scheduler();
    for (RequestParams params : requests) {
      params.drafter = drafter;
      submit(*scheduler, std::move(params));
    }
    auto results = run_all(*scheduler);
    const KvCacheStats pool = scheduler->kv_cache()->stats();
    CHECK(pool.free_blocks == pool.num_blocks);
    return results;
  };
  const auto expected = run("off");
  for (const std::string& drafter : drafters) {
    INFO(drafter);
    const auto got = run(drafter);
    REQUIRE(got.size() == expected.size());
    for (const auto& [id, outcome] : expected) {
      INFO("request " << id);
      INFO(got.at(id).failure.to_string());
      CHECK(got.at(id).failure.ok() == outcome.failure.ok());
      CHECK(got.at(id).samples == outcome.samples);
    }
  }
  for (const auto& drafter : world.drafters) {
    CHECK_FALSE(drafter->gaps);
    CHECK(drafter->num_live() == 0);
  }
}

RequestParams sampled(RequestParams params, float temperature, uint64_t seed) {
  params.sampling.temperature = temperature;
  params.sampling.seed = seed;
  params.has_seed = true;
  return params;
}

// Tokens go up by at most two, round the vocabulary: a walk on a circle.
class CircleMask : public TokenMask {
 public:
  bool fill(std::span<const float>, std::span<uint32_t> words) override {
    if (walk_.empty()) return false;
    for (int32_t step = 0; step <= 2; ++step) {
      const int32_t token = next(step);
      words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
    return true;
  }
  bool advance(int32_t token) override {
    if (!walk_.empty() && token != next(0) && token != next(1) && token != next(2)) return false;
    walk_.push_back(token);
    return true;
  }
  void retreat(int32_t num_tokens) override { walk_.resize(walk_.size() - static_cast<size_t>(num_tokens)); }

 private:
  int32_t next(int32_t step) const { return 1 + (walk_.back() - 1 + step) % (kVocabSize - 1); }
  std::vector<int32_t> walk_;
};

}  // namespace

TEST_CASE("logits that are no numbers are the model's failure, whoever guessed") {
  const Logits sick = [](std::span<const int32_t> context, std::span<float> logits) {
    repeating_logits(context, logits);
    if (context.size() > 30) logits[5] = INFINITY;
  };
  Speculating world(sick);
  for (const std::string& drafter : kDrafters) {
    INFO(drafter);
    const auto failure_with = [&](const std::string& name) {
      RequestParams params = request(prompt_of(12, 1), 60);
      params.drafter = name;
      return run_one(*world.scheduler(), params).failure;
    };
    const Status plain = failure_with("off"), guessed = failure_with(drafter);
    CHECK(plain.code() == StatusCode::kInternal);
    CHECK(guessed.to_string() == plain.to_string());
  }
}

TEST_CASE("greedy and sampled requests of any kind are those of plain decoding") {
  Speculating world;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    RequestParams params = request(prompt_of(5 + 9 * i, i % 3), 40);
    params.num_logprobs = 2;
    if (i == 1) params.sampling.repetition_penalty = 1.3f;
    if (i == 1) params.sampling.frequency_penalty = 0.4f;
    if (i == 2) params.sampling.logit_bias = {{3, 1.5f}, {5, -2.0f}};
    if (i == 3) params.n = 3;
    if (i == 4) params.num_prompt_logprobs = 1;
    if (i == 5) params.stop_tokens = {2}, params.min_tokens = 7;
    requests.push_back(params);
    requests.push_back(sampled(params, 0.8f, i));
    requests.back().sampling.top_k = i % 2 == 0 ? 5 : 0;
    requests.back().sampling.top_p = i % 3 == 0 ? 0.9f : 1.0f;
    requests.back().sampling.min_p = i == 4 ? 0.05f : 0.0f;
  }
  check_equal(world, requests);
}

TEST_CASE("a prompt of one word, again and again") {
  Speculating world([](std::span<const int32_t> context, std::span<float> logits) {
    hashed_logits(context.last(1), logits);
    logits[kEos] = -10.0f;
    logits[static_cast<size_t>(context.back())] += context.size() % 9 == 0 ? 0.0f : 4.0f;
  });
  check_equal(world, {request(std::vector<int32_t>(48, 7), 32)});
}

TEST_CASE("stop strings, end tokens and text end where they would") {
  Speculating world(hashed_logits, true);
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    RequestParams params = request(prompt_of(8, i), 60);
    params.stop_strings =
        i % 2 == 0 ? std::vector<std::string>{"a", "DEFG"} : std::vector<std::string>{"qx", "HI", "zz"};
    params.num_logprobs = 0;
    params.min_tokens = i % 3 == 0 ? 5 : 0;
    requests.push_back(params);
    requests.push_back(sampled(params, 1.0f, i));
  }
  check_equal(world, requests);
}

TEST_CASE("limits of tokens and context hold to the token") {
  Speculating world;
  world.toy.options.kv_max_tokens = 64;
  std::vector<RequestParams> requests = {request(prompt_of(9, 1), 1), request(prompt_of(9, 1), 2),
                                         request(prompt_of(9, 1), 3)};
  check_equal(world, requests);
  check_equal(world, {request(prompt_of(20, 2), 0)});  // to the end of the context
}

TEST_CASE("a full pool preempts, and chunks and batches change nothing") {
  for (const int64_t tokens : {96, 128, 256}) {
    Speculating world;
    world.toy.options.kv_max_tokens = tokens;
    world.toy.options.max_num_batched_tokens = 24;
    world.toy.options.max_num_seqs = 8;
    std::vector<RequestParams> requests;
    for (uint64_t i = 0; i < 8; ++i) requests.push_back(request(prompt_of(10 + 5 * i, i % 4), 30));
    check_equal(world, requests);
  }
}

TEST_CASE("no rejected row is found in the prefix index") {
  Speculating world;
  const auto scheduler = world.scheduler();
  for (int round = 0; round < 2; ++round) {
    for (const char* drafter : {"g2", "g3", "g1", "g4", "off"}) {
      RequestParams params = request(prompt_of(30, 4), 60);
      params.drafter = drafter;
      const Outcome outcome = run_one(*scheduler, params);
      CHECK(outcome.only().tokens == greedy(repeating_logits, prompt_of(30, 4), 60));
      // What was computed before serves a continuation.
      std::vector<int32_t> longer = prompt_of(30, 4);
      longer.insert(longer.end(), outcome.only().tokens.begin(), outcome.only().tokens.end());
      longer.push_back(3);
      const Outcome next = run_one(*scheduler, request(longer, 10));
      CHECK(next.only().tokens == greedy(repeating_logits, longer, 10));
      CHECK(next.only().usage.cached_tokens == 80);
    }
  }
}

TEST_CASE("sessions go on after a guessed answer") {
  Speculating world;
  const auto cache = world.toy.cache();
  const auto scheduler = world.scheduler(cache);
  const auto session = world.toy.session(cache);
  std::vector<int32_t> all;
  for (int turn = 0; turn < 6; ++turn) {
    RequestParams params = request(prompt_of(7, static_cast<uint64_t>(turn)), 21);
    params.session = session;
    params.drafter = kDrafters[static_cast<size_t>(turn)];
    all.insert(all.end(), params.prompt.begin(), params.prompt.end());
    const Outcome outcome = run_one(*scheduler, params);
    CHECK(outcome.only().tokens == greedy(repeating_logits, all, 21));
    all.insert(all.end(), outcome.only().tokens.begin(), outcome.only().tokens.end());
    CHECK(session->tokens() == all);
  }
}

TEST_CASE("a mask walks along the guesses and back") {
  Speculating world;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    RequestParams params = request(prompt_of(12, i), 50);
    params.token_mask = [] { return std::make_unique<CircleMask>(); };
    params.n = i == 2 ? 2 : 1;
    requests.push_back(params);
    requests.push_back(sampled(params, 1.0f, i));
  }
  check_equal(world, requests);
  const auto scheduler = world.scheduler();
  RequestParams params = requests[0];
  params.drafter = "g0";
  const Outcome outcome = run_one(*scheduler, params);
  const std::vector<int32_t>& tokens = outcome.only().tokens;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const int32_t step = (tokens[i] - tokens[i - 1] + kVocabSize - 1) % (kVocabSize - 1);
    CHECK(step <= 2);
  }
}

TEST_CASE("guesses make steps fewer, and are counted by drafter and depth") {
  Speculating world;
  const auto scheduler = world.scheduler();
  RequestParams params = request(prompt_of(12, 1), 65);
  params.drafter = "g0";
  const Outcome outcome = run_one(*scheduler, params);
  const speculation::SpeculationCounts& counts = outcome.only().usage.speculation;
  CHECK(world.toy.executor->num_runs == 9);  // the prompt's, and 64 tokens by eight
  CHECK(counts.state == speculation::DraftState::kDrafted);
  CHECK(counts.drafted() == 56);
  CHECK(counts.accepted() == 56);
  CHECK(counts.saved_ns > 0.0);
  const SchedulerReport report = scheduler->report();
  REQUIRE(report.speculation.drafters.size() == counts.drafters.size());
  REQUIRE(report.speculation.drafters[2].name == "g0");
  REQUIRE(counts.drafters[2].name == "g0");
  CHECK(counts.drafters[0].name.empty());
  CHECK(counts.drafters[2].drafted_at[6] == 8);
  CHECK(counts.drafters[2].accepted_at[0] == 8);
  CHECK(report.speculation.accepted() == 56);
  params.drafter = "g2";
  const auto wrong = run_one(*scheduler, params).only().usage.speculation;
  CHECK(wrong.accepted() == 0);
  CHECK(wrong.saved_ns < 0.0);
  params.drafter = "off";
  CHECK(run_one(*scheduler, params).only().usage.speculation.state == speculation::DraftState::kOff);
}

TEST_CASE("one step verifies siblings, and goes on from any of them") {
  Speculating world;
  // The right token stands behind a wrong one, and sometimes behind one that claims more.
  RequestParams params = request(prompt_of(12, 1), 65);
  params.drafter = "g5";
  const auto scheduler = world.scheduler();
  const Outcome outcome = run_one(*scheduler, params);
  CHECK(outcome.only().tokens == greedy(repeating_logits, prompt_of(12, 1), 65));
  const speculation::SpeculationCounts& counts = outcome.only().usage.speculation;
  CHECK(world.toy.executor->num_runs == 9);  // the prompt's, and 64 tokens by eight
  CHECK(counts.accepted() == 56);
  CHECK(counts.drafted() > 2 * 56);  // some siblings are alike
  const KvCacheStats pool = scheduler->kv_cache()->stats();
  CHECK(pool.free_blocks == pool.num_blocks);
}

TEST_CASE("trees in batches of any size, with prompts in pieces and what is cached, are plain decoding") {
  for (const size_t batch : {1, 2, 5, 12, 32}) {
    Speculating world;
    world.toy.options.max_num_seqs = static_cast<int64_t>(batch);
    world.toy.options.max_num_batched_tokens = batch % 2 == 0 ? 64 : 512;
    std::vector<RequestParams> requests;
    for (uint64_t i = 0; i < 2 * batch; ++i) {
      requests.push_back(request(prompt_of(6 + 7 * (i % 6), i % 5), 24));  // some share a prefix
      if (i % 3 == 1) requests.back() = sampled(requests.back(), 0.9f, i);
      if (i % 5 == 2) requests.back().n = 2;
    }
    if (batch < 2) {
      for (RequestParams& params : requests) params.n = 1;
    }
    check_equal(world, requests, {"g5", "ngram,suffix,g5"});
  }
}

TEST_CASE("branches give their room up to a request that waits") {
  Speculating world;
  world.toy.options.kv_max_tokens = 192;
  const auto scheduler = world.scheduler();
  RequestParams first = request(prompt_of(20, 1), 100);
  first.drafter = "g5";
  const uint64_t running = submit(*scheduler, first);
  for (int i = 0; i < 3; ++i) step(*scheduler);
  // With the branches of a step the pool has less than its three blocks.
  const uint64_t waiting = submit(*scheduler, request(prompt_of(40, 2), 4));
  step(*scheduler);
  std::map<uint64_t, Outcome> results;
  drain(*scheduler, results);
  CHECK(results[waiting].samples.size() == 1);
  CHECK(results[running].num_last == 0);
  CHECK(run_all(*scheduler)[running].only().reason == FinishReason::kLength);
}

TEST_CASE("trees where they pay, chains where they do not") {
  Speculating world;
  world.toy.options.draft_always = false;
  const auto took = [&](const std::string& drafter) {
    const auto scheduler = world.scheduler();
    const int64_t before = world.toy.executor->now_ns;
    RequestParams params = request(prompt_of(12, 1), 400);
    params.drafter = drafter;
    CHECK(run_one(*scheduler, params).only().tokens == greedy(repeating_logits, prompt_of(12, 1), 400));
    return static_cast<double>(world.toy.executor->now_ns - before);
  };
  // Rows cost little: siblings are verified beside what claims more.
  world.toy.executor->cost = [](const Batch& batch) { return 990'000 + 10'000 * batch.num_tokens(); };
  const double plain = took("off");
  CHECK(took("g5") < 0.4 * plain);
  // Each costs a step of its own: nothing pays.
  world.toy.executor->cost = [](const Batch& batch) { return 1'000'000 * batch.num_tokens(); };
  const double dear = took("off");
  CHECK(took("g5") < dear / 0.97);
}

TEST_CASE("guesses that do not pay are not verified, and those that do are") {
  Speculating world;
  world.toy.options.draft_always = false;
  // A step of one row takes 10 units, each further row one; guessing nothing.
  world.toy.executor->cost = [](const Batch& batch) { return 900'000 + 100'000 * batch.num_tokens(); };
  const auto took = [&](const std::string& drafter) {
    const auto scheduler = world.scheduler();
    const int64_t before = world.toy.executor->now_ns;
    RequestParams params = request(prompt_of(12, 1), 400);
    params.drafter = drafter;
    CHECK(run_one(*scheduler, params).only().tokens == greedy(repeating_logits, prompt_of(12, 1), 400));
    return static_cast<double>(world.toy.executor->now_ns - before);
  };
  const double plain = took("off");
  CHECK(took("g2") < plain / 0.97);  // wrong ones
  CHECK(took("g3") < plain / 0.97);  // random ones
  CHECK(took("g0") < 0.3 * plain);   // right ones: eight tokens in 1.7 steps
  CHECK(took("g1") < 0.75 * plain);
  // Where each row costs a step of its own nothing pays.
  world.toy.executor->cost = [](const Batch& batch) { return 1'000'000 * batch.num_tokens(); };
  const double dear = took("off");
  CHECK(took("g1") < dear / 0.97);
}

TEST_CASE("drafters that take time guess as far as it pays, and step aside for cheaper ones") {
  Speculating world;
  world.toy.options.draft_always = false;
  world.toy.executor->cost = [](const Batch& batch) { return 950'000 + 50'000 * batch.num_tokens(); };
  for (const auto& drafter : world.drafters) {
    drafter->on_nodes = [&](int32_t count) { world.toy.executor->now_ns += 400'000 * count; };
  }
  const auto took = [&](const std::string& drafter) {
    const auto scheduler = world.scheduler();
    const int64_t before = world.toy.executor->now_ns;
    RequestParams params = request(prompt_of(12, 1), 400);
    params.drafter = drafter;
    CHECK(run_one(*scheduler, params).only().tokens == greedy(repeating_logits, prompt_of(12, 1), 400));
    return static_cast<double>(world.toy.executor->now_ns - before);
  };
  const double plain = took("off");
  CHECK(took("g2") < plain / 0.95);  // wrong ones, asked again now and then
  CHECK(took("g0") < 0.60 * plain);  // right ones: eight tokens in a step, seven guesses and their rows, 4.15 steps
  CHECK(took("g1") < 0.92 * plain);  // 2/3 right: 1.67 tokens in 1.45 steps
  // Where the suffixes know as much, nothing dearer is asked.
  const int64_t asked = world.drafters[0]->num_nodes;
  const double suffix = took("suffix"), both = took("suffix,g0");
  CHECK(world.drafters[0]->num_nodes - asked < 120);  // at first, and of 400 tokens
  CHECK(both < suffix);
}

TEST_CASE("drafters that no scheduler has are refused by name") {
  Speculating world;
  const auto scheduler = world.scheduler();
  RequestParams params = request(prompt_of(4, 1), 4);
  params.drafter = "ngram,elsewhere";
  const auto id = scheduler->submit(params);
  REQUIRE_FALSE(id.ok());
  CHECK(id.status().code() == StatusCode::kInvalidArgument);
  CHECK(id.status().to_string().find("elsewhere") != std::string::npos);
  Toy plain;
  plain.options.drafter = "g0";
  const auto made = Scheduler::create(plain.model, nullptr, plain.options);
  REQUIRE_FALSE(made.ok());
  CHECK(made.status().to_string().find("scheduler.drafter") != std::string::npos);
}

TEST_CASE("a request that is cancelled among guesses gives its blocks back") {
  for (const char* drafter : {"g0", "g2", "g5", "g8"}) {
    Speculating world;
    const auto scheduler = world.scheduler();
    RequestParams params = request(prompt_of(20, 1), 200);
    params.drafter = drafter;
    const uint64_t id = submit(*scheduler, params);
    for (int i = 0; i < 4; ++i) step(*scheduler);
    REQUIRE(scheduler->cancel(id).ok());
    const Outcome outcome = run_all(*scheduler)[id];
    CHECK(outcome.only().reason == FinishReason::kCancelled);
    CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
    for (const auto& one : world.drafters) CHECK(one->num_live() == 0);
  }
}

TEST_CASE("texts of drawn guesses are distributed as plain ones") {
  // Two tokens drawn after a prompt: their pairs, over many seeds, with guesses drawn elsewhere than the model draws.
  constexpr uint64_t kSeeds = 20000;
  const Logits logits = [](std::span<const int32_t> context, std::span<float> row) {
    std::fill(row.begin(), row.end(), -INFINITY);
    for (int32_t id = 1; id <= 4; ++id) {
      row[static_cast<size_t>(id)] = static_cast<float>((context.back() * 7 + id * 3) % 5) * 0.7f;
    }
  };
  const std::string drafter = GENERATE(as<std::string>(), "g6", "g8");
  Speculating world(logits);
  world.drafters[6] = std::make_shared<GuessingDrafter>("g6", Guessing::kDrawn, 5, [](auto) { return 1; });
  world.drafters[8] = std::make_shared<GuessingDrafter>("g8", Guessing::kDrawnTree, 5, [](auto) { return 1; });
  const auto scheduler = world.scheduler();
  std::vector<double> counts(64);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RequestParams params = sampled(request({3}, 4), 0.9f, seed);
    params.drafter = drafter;
    const auto id = scheduler->submit(params);
    REQUIRE(id.ok());
    while (*scheduler->step()) {
    }
    std::vector<int32_t> tokens;
    while (const auto event = scheduler->next_event())
      tokens.insert(tokens.end(), event->tokens.begin(), event->tokens.end());
    REQUIRE(tokens.size() == 4);
    ++counts[static_cast<size_t>((tokens[1] - 1) * 16 + (tokens[2] - 1) * 4 + tokens[3] - 1)];
  }
  const auto probability = [&](int32_t after, int32_t token) {
    std::vector<float> row(kVocabSize);
    logits({&after, 1}, row);
    double sum = 0.0;
    for (int32_t id = 1; id <= 4; ++id) sum += std::exp(static_cast<double>(row[static_cast<size_t>(id)]) / 0.9);
    return std::exp(static_cast<double>(row[static_cast<size_t>(token)]) / 0.9) / sum;
  };
  double chi = 0.0;
  for (int32_t a = 1; a <= 4; ++a) {
    for (int32_t b = 1; b <= 4; ++b) {
      for (int32_t c = 1; c <= 4; ++c) {
        double p = 0.0;
        for (int32_t first = 1; first <= 4; ++first) p += probability(3, first) * probability(first, a);
        p *= probability(a, b) * probability(b, c);
        const double expected = p * kSeeds, count = counts[static_cast<size_t>((a - 1) * 16 + (b - 1) * 4 + c - 1)];
        chi += (count - expected) * (count - expected) / expected;
      }
    }
  }
  INFO(drafter << ": " << chi);
  CHECK(chi < 103.4);  // 63 degrees of freedom, 1 in 1000
}
