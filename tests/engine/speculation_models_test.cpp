// Speculation on tiny models of every kind of layer: tokens and log probabilities are those of plain decoding, to the bit.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/guessing_drafter.h"
#include "engine/real_requests.h"
#include "model/model_header.h"
#include "peft_files.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

struct Said {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, top_logprobs;
  bool operator==(const Said& other) const {
    return tokens == other.tokens && equal_bits(logprobs, other.logprobs) &&
           equal_bits(top_logprobs, other.top_logprobs);
  }
};
using Answers = std::map<std::pair<uint64_t, uint32_t>, Said>;

// What requests of one kind look like; seeds tell them apart.
std::vector<RequestParams> requests_of(int32_t vocab_size) {
  std::vector<RequestParams> out;
  for (uint64_t i = 0; i < 7; ++i) {
    RequestParams params;
    // Prompts that repeat a run of themselves, so that n-grams and suffixes find something.
    params.prompt = seeded_tokens(11 + 3 * i, i, 8, static_cast<uint64_t>(std::min(vocab_size, 300) - 8));
    const std::vector<int32_t> again(params.prompt.begin() + 2, params.prompt.begin() + 9);
    params.prompt.insert(params.prompt.end(), again.begin(), again.end());
    params.max_tokens = 34;
    params.ignore_eos = true;
    params.num_logprobs = 3;
    if (i == 1) {
      params.sampling.repetition_penalty = 1.2f;
      params.sampling.presence_penalty = 0.3f;
    }
    if (i == 2) params.n = 2;
    if (i == 3) params.num_prompt_logprobs = 1;
    if (i >= 4) {
      params.sampling.temperature = 0.9f;
      params.sampling.seed = i;
      params.has_seed = true;
    }
    if (i == 4) params.stop_tokens = seeded_tokens(8, 40, 8, static_cast<uint64_t>(std::min(vocab_size, 300) - 8));
    if (i == 5) params.sampling.top_p = 0.8f, params.sampling.top_k = 12;
    if (i == 6) params.n = 2;
    out.push_back(std::move(params));
  }
  return out;
}

struct World {
  ModelHandle model;
  EngineOptions options;
  std::vector<RequestParams> requests;

  // The texts said before are what drafters guess from.
  Answers run(const std::string& drafter, const Answers& known) const {
    const auto oracle = [&](std::span<const int32_t> tokens) {
      for (const auto& [key, said] : known) {
        const std::vector<int32_t>& prompt = requests[key.first - 1].prompt;
        if (tokens.size() < prompt.size() || tokens.size() >= prompt.size() + said.tokens.size()) continue;
        const auto own = tokens.subspan(prompt.size());
        if (!std::equal(prompt.begin(), prompt.end(), tokens.begin())) continue;
        if (std::equal(own.begin(), own.end(), said.tokens.begin())) return said.tokens[own.size()];
      }
      return -1;
    };
    const auto drafters = speculation::guessing_drafters(model->executor->vocab_size(), oracle);
    auto made = Scheduler::create(model, nullptr, options, {drafters.begin(), drafters.end()});
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    const auto scheduler = made.take();
    std::vector<RequestParams> asked = requests;
    for (RequestParams& params : asked) params.drafter = drafter;
    Answers out;
    run_requests(*scheduler, std::move(asked), [&](const Event& event) {
      if (event.type != EventType::kTokens) return;
      Said& said = out[{event.request_id, event.index}];
      said.tokens.insert(said.tokens.end(), event.tokens.begin(), event.tokens.end());
      said.logprobs.insert(said.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      add_logprobs(said.top_logprobs, event);
    });
    drafted = scheduler->report().speculation.drafted();
    accepted = scheduler->report().speculation.accepted();
    preemptions = scheduler->report().metrics.preemptions;
    const KvCacheStats pool = scheduler->kv_cache()->stats();
    CHECK(pool.free_blocks == pool.num_blocks);
    return out;
  }
  mutable uint64_t drafted = 0, accepted = 0, preemptions = 0;
};

void check_model(const std::string& name) {
  if (!have_model(name)) return;
  INFO(name);
  World world;
  world.model = load_golden(name, 2);
  world.options.draft_always = true;
  world.options.max_draft_tokens = 5;
  world.options.kv_snapshot_interval = 16;
  world.requests = requests_of(world.model->executor->vocab_size());
  const Answers expected = world.run("off", {});
  REQUIRE(expected.size() == 9);
  for (const char* drafter : {"ngram,suffix", "g0", "g1", "g2", "g4", "g5"}) {
    INFO(drafter);
    CHECK(world.run(drafter, expected) == expected);
    if (std::string(drafter) == "g0") CHECK(world.accepted > 100);
    if (std::string(drafter) == "g1") CHECK(world.accepted > 30);
  }
  // The same in a pool that is too small for all, and with prompts in pieces.
  world.options.kv_max_tokens = 96;
  world.options.max_num_batched_tokens = 48;
  world.options.schedule_mode = ScheduleMode::kThroughput;
  world.options.max_num_seqs = 6;
  CHECK(world.run("g1", expected) == expected);
  CHECK(world.preemptions > 0);
}

const std::string kHeads = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/draft_heads/";

// A head over the model's own hidden states guesses.
void check_head(const std::string& name, const std::string& drafter) {
  INFO(drafter);
  World world;
  ModelSource source;
  source.path = kHeads + name;
  world.model = load_source(std::move(source), world.options);
  world.options.drafter = drafter;
  world.options.draft_always = true;
  world.options.max_draft_tokens = 5;
  world.options.kv_snapshot_interval = 16;
  world.requests = requests_of(world.model->executor->vocab_size());
  if (name == "eagle3_target") {
    std::string folder = (std::filesystem::temp_directory_path() / "headrace_speculation_XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    peft_files::AdapterFiles(kHeads + name, 7).write(folder);
    auto adapter = world.model->executor->load_adapter(folder);
    std::filesystem::remove_all(folder);
    INFO(adapter.status().to_string());
    REQUIRE(adapter.ok());
    for (const size_t i : {1, 6}) world.requests[i].adapter = *adapter;
  }
  world.requests[3].zero_retention = true;
  for (const size_t i : {0, 2}) world.requests.push_back(world.requests[i]);  // whose prefix may be cached
  const Answers expected = world.run("off", {});
  REQUIRE(expected.size() == 12);
  CHECK(world.run(drafter, {}) == expected);
  CHECK(world.drafted > 100);
  CHECK(world.accepted > 0);
  world.options.max_num_seqs = 2;
  CHECK(world.run(drafter + ",suffix", {}) == expected);
  world.options.max_num_seqs = 6;
  world.options.kv_max_tokens = 96;
  world.options.max_num_batched_tokens = 9;
  world.options.schedule_mode = ScheduleMode::kThroughput;
  CHECK(world.run(drafter, {}) == expected);
  CHECK(world.preemptions > 0);
  // Only the guesses that pay.
  world.options.draft_always = false;
  CHECK(world.run(drafter, {}) == expected);
}

// A model of another vocabulary guesses by text, cheap guesses before it or not.
void check_other_vocabulary(const std::string& name, const std::string& guesser, bool same_weights = false) {
  if (!have_model(name)) return;
  const std::string drafter = "model:" + guesser;
  INFO(name << " guessed by " << guesser);
  World world;
  world.model = load_golden(name, 2);
  world.options.drafter = drafter;
  world.options.draft_always = true;
  world.options.max_draft_tokens = 5;
  world.requests = requests_of(world.model->executor->vocab_size());
  world.requests[3].zero_retention = true;
  const Answers expected = world.run("off", {});
  REQUIRE(expected.size() == 9);
  CHECK(world.run(drafter, {}) == expected);
  CHECK(world.drafted > 50);
  // What random weights write is seldom how its text is encoded.
  if (same_weights) CHECK(world.accepted > 0);
  CHECK(world.run(drafter + ",suffix", {}) == expected);
  world.options.kv_max_tokens = 96;
  world.options.max_num_batched_tokens = 48;
  world.options.schedule_mode = ScheduleMode::kThroughput;
  world.options.max_num_seqs = 6;
  CHECK(world.run(drafter, {}) == expected);
  CHECK(world.preemptions > 0);
}

}  // namespace

TEST_CASE("a model of another vocabulary: the text is that of plain decoding") {
  check_other_vocabulary("llama", kModels + "mistral");
  check_other_vocabulary("mistral", kModels + "qwen3");
  check_other_vocabulary("qwen3", kModels + "starcoder2");
}
TEST_CASE("guesses by text stand where both would write the same") {
  if (!have_model("llama")) return;
  // The model itself, with another spelling of one token.
  std::string folder = (std::filesystem::temp_directory_path() / "headrace_vocabulary_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  for (const char* file : {"config.json", "model.safetensors", "tokenizer_config.json"}) {
    std::filesystem::copy_file(kModels + "llama/" + file, folder + "/" + file);
  }
  std::ifstream in(kModels + "llama/tokenizer.json");
  std::string tokenizer{std::istreambuf_iterator<char>(in), {}};
  const std::string from = "<mask>", to = "<veil>";
  for (size_t at; (at = tokenizer.find(from)) != std::string::npos;) tokenizer.replace(at, from.size(), to);
  std::ofstream(folder + "/tokenizer.json") << tokenizer;
  check_other_vocabulary("llama", folder, true);
  std::filesystem::remove_all(folder);
}
TEST_CASE("layers that predict further ahead: the text is that of plain decoding") {
  check_head("deepseek_v3", "mtp");
  check_head("glm4_moe", "mtp:" + kHeads + "glm4_moe");
  check_head("qwen3_next", "mtp");
}
TEST_CASE("DFlash heads: the text is that of plain decoding") {
  check_head("eagle3_target", "dflash:" + kHeads + "dflash");
}
TEST_CASE("EAGLE and Medusa heads: the text is that of plain decoding") {
  check_head("eagle3_target", "eagle:" + kHeads + "eagle");
  check_head("eagle3_target", "medusa:" + kHeads + "medusa");
  check_head("eagle3_target", "medusa:" + kHeads + "medusa_truncated");
  check_head("eagle3_target", "eagle3:" + kHeads + "eagle3");
  check_head("eagle3_target", "eagle3:" + kHeads + "eagle3_speculators");
}
TEST_CASE("full attention: the text is that of plain decoding") { check_model("qwen3"); }
TEST_CASE("sliding windows: the text is that of plain decoding") {
  check_model("qwen2_sliding");
  check_model("gpt_oss");
}
TEST_CASE("latent attention and experts: the text is that of plain decoding") { check_model("deepseek_v3"); }
TEST_CASE("an indexer's choice of positions: the text is that of plain decoding") { check_model("deepseek_v32"); }
TEST_CASE("runs of tokens in one row: the text is that of plain decoding") { check_model("deepseek_v4"); }
TEST_CASE("recurrent states: the text is that of plain decoding") {
  for (const char* name : {"mamba", "mamba2", "qwen3_next", "kimi_linear", "lfm2", "falcon_h1", "minimax"}) {
    check_model(name);
  }
}
TEST_CASE("a rotation that follows the length: the text is that of plain decoding") {
  check_model("llama_dynamic_ntk");
}
TEST_CASE("layers that see another's keys: the text is that of plain decoding") { check_model("gemma3n_text"); }
