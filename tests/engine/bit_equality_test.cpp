// One prompt, many ways to compute it: whole or in chunks, on one thread or two, cold or from the prefix index, saved
// and restored, forked, alone or among others, preempted. The logits are the same bits.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>

#include <unistd.h>

#include "base/hash.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/session.h"
#include "model/model_header.h"

namespace fs = std::filesystem;
using namespace headrace;
using namespace headrace::engine;

namespace {

using ModelHandle = std::shared_ptr<const EngineModel>;

// What is run: the file, how, and how much of it.
struct Case {
  std::string path;
  EngineOptions options;
  size_t prompt_size = 100;
  int64_t num_output = 12;
};

ModelHandle load(const Case& c, int32_t threads) {
  EngineOptions options = c.options;
  options.threads = threads;
  ModelSource source;
  source.path = c.path;
  auto model = load_engine_model(std::move(source), options);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

std::vector<int32_t> tokens_of(const EngineModel& model, size_t size, uint64_t seed) {
  std::vector<int32_t> out(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key[2] = {seed, i};
    out[i] = static_cast<int32_t>(hash64(key, sizeof key) % static_cast<uint64_t>(model.executor->vocab_size()));
  }
  return out;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::shared_ptr<Session> new_session(const ModelHandle& model, std::shared_ptr<KvCache> cache,
                                     const EngineOptions& options) {
  auto session = Session::create(model, std::move(cache), options);
  INFO(session.status().to_string());
  REQUIRE(session.ok());
  return session.take();
}

std::vector<float> evaluate(const EngineModel& model, Session& session, std::span<const int32_t> tokens) {
  std::vector<float> logits(tokens.size() * static_cast<size_t>(model.executor->vocab_size()));
  const Status status = session.evaluate(tokens, logits.data());
  INFO(status.to_string());
  REQUIRE(status.ok());
  return logits;
}

// Prompt and output logprobs of one request, in order.
struct Scores {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;

  void add(const Event& event) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    for (const TopLogprobs& top : event.top_logprobs) {
      top_ids.insert(top_ids.end(), top.token_ids.begin(), top.token_ids.end());
      top_logprobs.insert(top_logprobs.end(), top.logprobs.begin(), top.logprobs.end());
    }
  }
  bool same(const Scores& other) const {
    return tokens == other.tokens && top_ids == other.top_ids && same_bits(logprobs, other.logprobs) &&
           same_bits(top_logprobs, other.top_logprobs);
  }
};

std::map<uint64_t, Scores> run_all(Scheduler& scheduler) {
  std::map<uint64_t, Scores> out;
  for (bool more = true; more;) {
    const auto stepped = scheduler.step();
    REQUIRE(stepped.ok());
    more = *stepped;
    while (auto event = scheduler.next_event()) {
      INFO(event->status.to_string());
      REQUIRE(event->type != EventType::kFailed);
      out[event->request_id].add(*event);
    }
  }
  const Status law = scheduler.check_invariants();
  INFO(law.to_string());
  REQUIRE(law.ok());
  return out;
}

std::shared_ptr<Scheduler> new_scheduler(const ModelHandle& model, const EngineOptions& options) {
  auto scheduler = Scheduler::create(model, nullptr, options);
  REQUIRE(scheduler.ok());
  return scheduler.take();
}

uint64_t submit(Scheduler& scheduler, const Case& c, std::vector<int32_t> prompt, bool score_prompt) {
  RequestParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = c.num_output;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  if (score_prompt) params.num_prompt_logprobs = 5;
  const auto id = scheduler.submit(std::move(params));
  INFO(id.status().to_string());
  REQUIRE(id.ok());
  return *id;
}

void check_sessions(const Case& c, const ModelHandle& model, const std::vector<int32_t>& prompt,
                    const std::vector<float>& expected) {
  const auto vocab_size = static_cast<size_t>(model->executor->vocab_size());
  const size_t cut = prompt.size() / 2;
  const std::span<const int32_t> head(prompt.data(), cut), tail(prompt.data() + cut, prompt.size() - cut);
  const std::span<const float> expected_tail(expected.data() + cut * vocab_size, tail.size() * vocab_size);
  EngineOptions options = c.options;
  for (const int32_t chunk : {1, 7, 64}) {
    INFO("chunk " << chunk);
    options.prefill_chunk = chunk;
    CHECK(same_bits(evaluate(*model, *new_session(model, nullptr, options), prompt), expected));
  }
  auto cache = make_kv_cache(*model, c.options).take();
  auto session = new_session(model, cache, c.options);
  REQUIRE(session->evaluate(head, nullptr).ok());

  const auto fork = session->fork();
  REQUIRE(fork.ok());
  CHECK(same_bits(evaluate(*model, **fork, tail), expected_tail));
  const std::string path = (fs::temp_directory_path() / ("headrace_bits_" + std::to_string(::getpid()))).string();
  REQUIRE(session->save(path).ok());
  CHECK(same_bits(evaluate(*model, *session, tail), expected_tail));

  auto warm = new_session(model, cache, c.options);
  const int64_t hits = cache->stats().hit_tokens;
  REQUIRE(warm->append_tokens(head).ok());
  CHECK(same_bits(evaluate(*model, *warm, tail), expected_tail));
  CHECK(cache->stats().hit_tokens > hits);

  auto source = open_path(path);
  REQUIRE(source.ok());
  auto restored = Session::restore(model, nullptr, c.options, *source);
  std::remove(path.c_str());
  INFO(restored.status().to_string());
  REQUIRE(restored.ok());
  CHECK(same_bits(evaluate(*model, **restored, tail), expected_tail));

  REQUIRE((*restored)->rewind(static_cast<int64_t>(cut) - 3).ok());
  REQUIRE((*restored)->append_tokens(head.last(3)).ok());
  CHECK(same_bits(evaluate(*model, **restored, tail), expected_tail));
}

void check_scheduler(const Case& c, const ModelHandle& model, const std::vector<int32_t>& prompt,
                     const std::vector<float>& expected) {
  const auto vocab_size = static_cast<size_t>(model->executor->vocab_size());
  auto scheduler = new_scheduler(model, c.options);
  uint64_t id = submit(*scheduler, c, prompt, true);
  const Scores alone = run_all(*scheduler)[id];
  REQUIRE(alone.logprobs.size() == prompt.size() + static_cast<size_t>(c.num_output));
  for (size_t i = 1; i < prompt.size(); ++i) {
    const std::span<const float> row(expected.data() + (i - 1) * vocab_size, vocab_size);
    LogitStats stats;
    model->executor->logit_stats({row.data(), 1, static_cast<int64_t>(vocab_size), &stats});
    const auto score = score_token(row, stats, prompt[i], 5);
    REQUIRE(score.ok());
    REQUIRE(same_bits({&score->logprob, 1}, {&alone.logprobs[i], 1}));
  }
  Scores output = alone;  // of a request that does not score its prompt
  output.tokens.erase(output.tokens.begin(), output.tokens.begin() + static_cast<ptrdiff_t>(prompt.size()));
  output.logprobs.erase(output.logprobs.begin(), output.logprobs.begin() + static_cast<ptrdiff_t>(prompt.size()));
  const auto top = static_cast<ptrdiff_t>(5 * (prompt.size() - 1));
  output.top_ids.erase(output.top_ids.begin(), output.top_ids.begin() + top);
  output.top_logprobs.erase(output.top_logprobs.begin(), output.top_logprobs.begin() + top);
  id = submit(*scheduler, c, prompt, false);  // the prompt is in the prefix index now
  CHECK(run_all(*scheduler)[id].same(output));
  CHECK(scheduler->stats().cached_tokens > 0);

  for (const int32_t budget : {9, 512}) {
    INFO("among others, " << budget << " rows a step");
    EngineOptions options = c.options;
    options.max_num_batched_tokens = budget;
    scheduler = new_scheduler(model, options);
    for (uint64_t other = 1; other <= 3; ++other) submit(*scheduler, c, tokens_of(*model, 11 * other, other), false);
    const uint64_t scored = submit(*scheduler, c, prompt, true);
    for (uint64_t other = 4; other <= 5; ++other) submit(*scheduler, c, tokens_of(*model, 6 * other, other), false);
    const uint64_t plain = submit(*scheduler, c, prompt, false);
    auto scores = run_all(*scheduler);
    CHECK(scores[scored].same(alone));
    CHECK(scores[plain].same(output));
  }

  // A pool for little more than one of them.
  EngineOptions options = c.options;
  options.kv_max_tokens = static_cast<int64_t>(prompt.size()) + c.num_output + 32;
  options.kv_prefix_index = false;
  scheduler = new_scheduler(model, options);
  submit(*scheduler, c, tokens_of(*model, 10, 9), false);
  const uint64_t squeezed = submit(*scheduler, c, prompt, false);
  submit(*scheduler, c, tokens_of(*model, 20, 8), false);
  RequestParams urgent;
  REQUIRE(scheduler->step().ok());
  urgent.prompt = tokens_of(*model, prompt.size(), 7);
  urgent.max_tokens = 2;
  urgent.priority = 1;
  REQUIRE(scheduler->submit(urgent).ok());
  CHECK(run_all(*scheduler)[squeezed].same(output));
}

void check(const Case& c) {
  INFO(c.path << ", KV " << kv_dtype_name(c.options.kv_dtype));
  const ModelHandle one = load(c, 1), two = load(c, 2);
  const auto prompt = tokens_of(*one, c.prompt_size, 42);
  const std::vector<float> expected = evaluate(*one, *new_session(one, nullptr, c.options), prompt);
  CHECK(same_bits(evaluate(*two, *new_session(two, nullptr, c.options), prompt), expected));
  for (const ModelHandle& model : {one, two}) {
    INFO(model->executor->num_threads() << " threads");
    check_sessions(c, model, prompt, expected);
    check_scheduler(c, model, prompt, expected);
  }
}

}  // namespace

TEST_CASE("tiny models: equal bits in every way of computing them") {
  const fs::path shipped = fs::path(HEADRACE_SOURCE_DIR) / "tests/data/goldens";
  REQUIRE(fs::is_directory(shipped));
  int found = 0;
  for (const char* name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    if (!fs::exists(shipped / name / "config.json")) continue;
    ++found;
    for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
      Case c;
      c.path = (shipped / name).string();
      c.options.kv_dtype = dtype;
      c.options.kv_max_tokens = 512;
      check(c);
    }
  }
  CHECK(found >= 2);
}

// A prefix is found where a snapshot of the state is, so snapshots are made often here.
TEST_CASE("models with recurrent state: equal bits in every way of computing them") {
  const std::string models = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
  if (!fs::exists(models + "lfm2/config.json")) {
    std::cout << "SKIPPED: no golden models in HEADRACE_TEST_DATA\n";
    return;
  }
  for (const char* name : {"lfm2", "mamba", "mamba2", "falcon_h1", "qwen3_5_text"}) {
    for (const int32_t interval : {16, 32}) {
      Case c;
      c.path = models + name;
      c.options.kv_dtype = KvDType::kF16;
      c.options.kv_max_tokens = 512;
      c.options.kv_snapshot_interval = interval;
      check(c);
    }
  }
}

// Block-format weights need a real model: HEADRACE_MODELS_DIR names a folder with GGUF files, of which the smallest
// is taken.
TEST_CASE("a quantized model: equal bits in every way of computing them") {
  std::string path;
  uint64_t smallest = uint64_t{1} << 30;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(HEADRACE_MODELS_DIR, ignored)) {
    if (entry.path().extension() != ".gguf" || entry.file_size() >= smallest) continue;
    smallest = entry.file_size();
    path = entry.path().string();
  }
  if (path.empty()) {
    std::cout << "SKIPPED: no GGUF file below 1 GiB in HEADRACE_MODELS_DIR\n";
    return;
  }
  for (const ActivationType activations : {ActivationType::kInt8, ActivationType::kInt16}) {
    for (const KvDType dtype : {KvDType::kF16, KvDType::kQ8}) {
      Case c;
      c.path = path;
      c.options.activations = activations;
      c.options.kv_dtype = dtype;
      c.options.kv_max_tokens = 256;
      c.prompt_size = 37;
      c.num_output = 4;
      check(c);
    }
  }
}
