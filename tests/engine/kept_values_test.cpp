// Cached values where a cut is not free: windows that forget, states that cannot be cut.
#include <catch2/catch.hpp>

#include <chrono>
#include <thread>

#include "engine/real_requests.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached = 0;
  bool same(const Output& other) const { return tokens == other.tokens && equal_bits(logprobs, other.logprobs); }
};

Output run(Scheduler& scheduler, std::vector<int32_t> prompt) {
  RequestParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = 12;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  Output out;
  run_requests(scheduler, {params}, [&](const Event& event) {
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    add_logprobs(out.logprobs, event);
    if (event.type == EventType::kFinished) out.cached = event.usage.cached_tokens;
  });
  return out;
}

}  // namespace

TEST_CASE("a model with windows reuses a prompt longer than they are, and branches of it around their ends") {
  constexpr int64_t kWindow = 16;  // of five of its six layers
  EngineOptions options;
  options.threads = 1;
  options.kv_max_tokens = 2048;  // of all branches
  ModelSource source;
  source.path = HEADRACE_SOURCE_DIR "/tests/data/goldens/gemma3";
  const ModelHandle model = load_source(std::move(source), options);
  const auto warm = scheduler_of(model, options);
  const std::vector<int32_t> prompt = seeded_tokens(100, 1, 8, 50);
  const Output first = run(*warm, prompt);
  CHECK(first.cached == 0);
  const Output again = run(*warm, prompt);
  CHECK(again.cached == 96);  // all whole blocks: nothing but the rest is computed again
  CHECK(again.same(first));
  for (const int64_t edge : {kWindow, 2 * kWindow, 5 * kWindow}) {
    for (const int64_t common : {edge - 1, edge, edge + 1}) {
      INFO(common << " tokens in common");
      std::vector<int32_t> branch(prompt.begin(), prompt.begin() + common);
      const std::vector<int32_t> rest = seeded_tokens(40, static_cast<uint64_t>(common), 8, 50);
      branch.insert(branch.end(), rest.begin(), rest.end());
      const Output reused = run(*warm, branch);
      CHECK(reused.cached == common / 16 * 16);
      CHECK(reused.same(run(*scheduler_of(model, options), branch)));
    }
  }
}

TEST_CASE("requests that expire in the queue of a model with recurrent state leave no state behind") {
  if (!have_model("mamba2")) return;
  const ModelHandle model = load_golden("mamba2", 1);
  EngineOptions options;
  options.max_num_seqs = 1;
  options.kv_max_states = 2;
  options.kv_max_snapshots = 2;
  options.kv_snapshot_interval = 16;
  options.kv_max_tokens = 512;
  const auto scheduler = scheduler_of(model, options);
  const KvCacheStats before = scheduler->kv_cache()->stats();
  RequestParams params;
  params.ignore_eos = true;
  std::vector<RequestParams> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    params.prompt = seeded_tokens(40, i % 3, 8, 50);
    params.max_tokens = 30;
    params.deadline_ms = i == 0 ? 0 : 1;  // the first runs, and holds the only place
    requests.push_back(params);
  }
  int finished = 0, late = 0;
  run_requests(*scheduler, std::move(requests), [&](const Event& event) {
    if (finished + late == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (event.type != EventType::kFinished) return;
    ++(event.finish_reason == FinishReason::kDeadline ? late : finished);
  });
  CHECK(finished == 1);
  CHECK(late == 11);
  const KvCacheStats after = scheduler->kv_cache()->stats();
  CHECK(after.free_states == before.free_states);
  CHECK(after.free_blocks == before.free_blocks);
  // The place and the states serve the next one.
  CHECK(run(*scheduler, seeded_tokens(40, 9, 8, 50)).tokens.size() == 12);
}
