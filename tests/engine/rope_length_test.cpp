// Models that rotate a sequence by its length. The law: a request's rotation is that of its prompt's length until the sequence
// outgrows it; from there on its logits are, to the bit, those of a request whose prompt is all that there is by then.
#include <catch2/catch.hpp>

#include <fstream>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/model_executor.h"
#include "engine/real_requests.h"
#include "engine/scheduler.h"
#include "engine/session.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kTrained = 64;

// The shipped Llama under another rotation.
ModelHandle load_rotated(const nlohmann::json& rope, int32_t threads = 2) {
  const std::string folder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/llama/";
  std::stringstream text;
  text << std::ifstream(folder + "config.json").rdbuf();
  nlohmann::json config = nlohmann::json::parse(text.str());
  config["rope_parameters"] = rope;
  if (rope["rope_type"] == "dynamic") config["max_position_embeddings"] = kTrained;
  ModelSource source;
  auto bytes = open_path(folder + "model.safetensors");
  REQUIRE(bytes.ok());
  source.sources.push_back(bytes.take());
  source.config_json = config.dump();
  EngineOptions options;
  options.threads = threads;
  return load_source(std::move(source), options);
}

ModelHandle load_dynamic() {
  return load_rotated({{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}});
}

ModelHandle load_longrope() {
  return load_rotated({{"rope_type", "longrope"},
                       {"rope_theta", 10000.0},
                       {"original_max_position_embeddings", kTrained},
                       {"short_factor", {1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35}},
                       {"long_factor", {1.0, 2.5, 4.0, 5.5, 7.0, 8.5, 10.0, 11.5}}});
}

Tokens tokens_of(size_t size, uint64_t seed = 1) { return seeded_tokens(size, seed, 0, 96); }

struct Output {
  Tokens tokens;
  std::vector<float> logprobs;  // of the five most likely tokens at each
  int64_t cached_tokens = 0;

  // What is left without the first `count` tokens.
  Output from(size_t count) const {
    Output out;
    out.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(count), tokens.end());
    out.logprobs.assign(logprobs.begin() + static_cast<ptrdiff_t>(5 * count), logprobs.end());
    return out;
  }
  bool same(const Output& other) const { return tokens == other.tokens && equal_bits(logprobs, other.logprobs); }
};

RequestParams request(Tokens prompt, int64_t max_tokens) {
  RequestParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  return params;
}

// One for each sample, in order of request and index.
std::vector<Output> run(Scheduler& scheduler, std::vector<RequestParams> requests) {
  std::map<std::pair<uint64_t, uint32_t>, Output> by_id;
  run_requests(scheduler, std::move(requests), [&](const Event& event) {
    Output& out = by_id[{event.request_id, event.index}];
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    add_logprobs(out.logprobs, event);
    if (event.type == EventType::kFinished) out.cached_tokens = event.usage.cached_tokens;
  });
  return values_of(std::move(by_id));
}

std::shared_ptr<Scheduler> new_scheduler(const ModelHandle& model, int64_t cache_tokens = 1024, int32_t rows = 512) {
  EngineOptions options;
  options.kv_max_tokens = cache_tokens;
  options.max_num_batched_tokens = rows;
  return scheduler_of(model, options);
}

Output run_alone(const ModelHandle& model, Tokens prompt, int64_t max_tokens) {
  return run(*new_scheduler(model), {request(std::move(prompt), max_tokens)})[0];
}

std::shared_ptr<Session> new_session(const ModelHandle& model, std::shared_ptr<KvCache> cache = nullptr) {
  auto session = Session::create(model, std::move(cache), EngineOptions());
  REQUIRE(session.ok());
  return session.take();
}

std::vector<float> evaluate(Session& session, const Tokens& tokens) {
  std::vector<float> logits(tokens.size() * 96);
  const Status status = session.evaluate(tokens, logits.data());
  INFO(status.to_string());
  REQUIRE(status.ok());
  return logits;
}

Tokens joined(Tokens a, const Tokens& b, size_t count) {
  a.insert(a.end(), b.begin(), b.begin() + static_cast<ptrdiff_t>(count));
  return a;
}

std::vector<float> last_rows(const std::vector<float>& logits, size_t count) {
  return {logits.end() - static_cast<ptrdiff_t>(count * 96), logits.end()};
}

}  // namespace

TEST_CASE("from the token that outgrows its rotation a request is one with a longer prompt") {
  const Tokens prompt = tokens_of(60);
  const auto check = [&](const ModelHandle& model, const std::vector<size_t>& crossings) {
    const Output whole = run_alone(model, prompt, 90);
    REQUIRE(whole.tokens.size() == 90);
    size_t before = 0;
    for (const size_t crossing : crossings) {
      INFO("after " << crossing << " tokens");
      const Output fresh =
          run_alone(model, joined(prompt, whole.tokens, crossing), static_cast<int64_t>(90 - crossing));
      CHECK(fresh.same(whole.from(crossing)));
      // So does what was computed from the crossing before on, or from the start: it crosses here itself.
      const Output early = run_alone(model, joined(prompt, whole.tokens, before), static_cast<int64_t>(90 - before));
      CHECK(early.same(whole.from(before)));
      before = crossing;
    }
    // The prompt alone is not the longer one: what it would be without a crossing.
    const auto session = new_session(model);
    const std::vector<float> at_once = evaluate(*session, joined(prompt, whole.tokens, crossings[0]));
    const std::vector<float> shorter = evaluate(*new_session(model), prompt);
    CHECK(std::vector<float>(at_once.begin(), at_once.begin() + 60 * 96) != shorter);
  };
  // Lengths 65 and 129: past the trained length, and past its next multiple.
  SECTION("dynamic NTK") { check(load_dynamic(), {5, 69}); }
  SECTION("LongRoPE") { check(load_longrope(), {5}); }
}

TEST_CASE("a request keeps the rotation of its prompt until then") {
  // 100 tokens rotate by 100, and so does what follows up to the 128th: other than a prompt of 101 would.
  const ModelHandle model = load_dynamic();
  const Tokens prompt = tokens_of(100);
  const Output whole = run_alone(model, prompt, 20);
  const Output later = run_alone(model, joined(prompt, whole.tokens, 1), 19);
  CHECK(later.logprobs != whole.from(1).logprobs);
}

TEST_CASE("sequences of different rotations share steps and change no bit of each other") {
  for (const ModelHandle& model : {load_dynamic(), load_longrope()}) {
    const std::vector<size_t> sizes = {20, 150, 61, 100, 63, 101};
    std::vector<Output> alone;
    for (const size_t size : sizes) alone.push_back(run_alone(model, tokens_of(size, size), 30));
    for (const int32_t rows : {9, 64, 512}) {
      INFO(rows << " rows a step");
      std::vector<RequestParams> requests;
      for (const size_t size : sizes) requests.push_back(request(tokens_of(size, size), 30));
      const std::vector<Output> shared = run(*new_scheduler(model, 2048, rows), std::move(requests));
      for (size_t i = 0; i < sizes.size(); ++i) CHECK(shared[i].same(alone[i]));
    }
    // Two in a pool that holds their prompts, and not all that they become: one is preempted, and computed again with the
    // rotation it had.
    const auto scheduler = new_scheduler(model, 240);
    const std::vector<Output> squeezed =
        run(*scheduler, {request(tokens_of(100, 100), 30), request(tokens_of(101, 101), 30)});
    CHECK(squeezed[0].same(alone[3]));
    CHECK(squeezed[1].same(alone[5]));
    CHECK(scheduler->stats().preemptions > 0);
  }
}

TEST_CASE("samples outgrow the rotation of their prompt each by itself") {
  for (const ModelHandle& model : {load_dynamic(), load_longrope()}) {
    RequestParams params = request(tokens_of(60), 30);
    params.n = 3;
    params.sampling.temperature = 1.0f;
    params.sampling.seed = 7;
    params.has_seed = true;
    const std::vector<Output> first = run(*new_scheduler(model), {params});
    REQUIRE(first.size() == 3);
    CHECK(first[0].tokens != first[1].tokens);
    const std::vector<Output> cut = run(*new_scheduler(model, 1024, 16), {params});
    for (size_t i = 0; i < 3; ++i) CHECK(cut[i].same(first[i]));
  }
}

TEST_CASE("values of different rotations are never taken for each other") {
  const Tokens prompt = tokens_of(150);
  const auto cached = [&](Scheduler& scheduler, size_t size) {
    const Tokens part(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(size));
    const Output output = run(scheduler, {request(part, 4)})[0];
    CHECK(output.same(run_alone(scheduler.model(), part, 4)));
    return output.cached_tokens;
  };
  SECTION("dynamic NTK: each length has its own") {
    const auto scheduler = new_scheduler(load_dynamic());
    CHECK(cached(*scheduler, 150) == 0);
    CHECK(cached(*scheduler, 150) == 144);
    CHECK(cached(*scheduler, 140) == 0);
    CHECK(cached(*scheduler, 50) == 0);
    CHECK(cached(*scheduler, 40) == 32);
  }
  SECTION("LongRoPE: long ones share, and so do short ones") {
    const auto scheduler = new_scheduler(load_longrope());
    CHECK(cached(*scheduler, 150) == 0);
    CHECK(cached(*scheduler, 140) == 128);
    CHECK(cached(*scheduler, 50) == 0);
    CHECK(cached(*scheduler, 40) == 32);
  }
}

TEST_CASE("a session rotates by all that it holds") {
  for (const ModelHandle& model : {load_dynamic(), load_longrope()}) {
    const Tokens tokens = tokens_of(150);
    const Tokens head(tokens.begin(), tokens.begin() + 50), tail(tokens.begin() + 50, tokens.end());
    const std::vector<float> whole = evaluate(*new_session(model), tokens);
    const auto session = new_session(model);
    CHECK(evaluate(*session, head) == evaluate(*new_session(model), head));
    CHECK(evaluate(*session, tail) == last_rows(whole, tail.size()));  // crosses

    // Back below, where the plain rotation holds again, and on.
    REQUIRE(session->rewind(50).ok());
    const auto fork = session->fork();
    REQUIRE(fork.ok());
    CHECK(evaluate(*session, tail) == last_rows(whole, tail.size()));
    const Tokens few(tail.begin(), tail.begin() + 10);
    CHECK(evaluate(**fork, few) == last_rows(evaluate(*new_session(model), joined(head, few, 10)), 10));

    const auto scheduler = new_scheduler(model);
    const auto own = new_session(model, scheduler->kv_cache());
    REQUIRE(own->append_tokens(tokens).ok());
    RequestParams params = request({}, 12);
    params.session = own;
    CHECK(run(*scheduler, {params})[0].same(run_alone(model, tokens, 12)));

    // Saved values name their rotation.
    const std::string path = Catch::getResultCapture().getCurrentTestName() + ".session";
    REQUIRE(session->save(path).ok());
    auto source = open_path(path);
    REQUIRE(source.ok());
    auto restored = Session::restore(model, nullptr, EngineOptions(), *source);
    std::remove(path.c_str());
    INFO(restored.status().to_string());
    REQUIRE(restored.ok());
    const Tokens more = tokens_of(8, 5);
    CHECK(evaluate(**restored, more) == last_rows(evaluate(*new_session(model), joined(tokens, more, 8)), 8));
  }
}

TEST_CASE("dynamic NTK has no length beyond which it ends") {
  const ModelHandle model = load_dynamic();
  CHECK(model->executor->max_context() > 1000000);
  CHECK(run_alone(model, tokens_of(500), 3).tokens.size() == 3);
}
