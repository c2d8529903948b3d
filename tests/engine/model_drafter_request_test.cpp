// Requests with a model as drafter: the tokens of plain decoding, and guesses that stand as often as the two agree.
#include "engine/real_requests.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";

EngineOptions options_with(const std::string& drafter) {
  EngineOptions options;
  options.threads = 1;
  options.drafter = drafter;
  options.draft_always = true;
  return options;
}

ModelHandle load_llama() {
  ModelSource source;
  source.path = kShipped + "llama";
  return load_source(std::move(source), options_with("off"));
}

std::vector<RequestParams> requests(float temperature, uint32_t n) {
  std::vector<RequestParams> out;
  for (const size_t size : {size_t{40}, size_t{3}, size_t{17}}) {
    RequestParams params;
    params.prompt = seeded_tokens(size, size, 3, 90);
    params.max_tokens = 24;
    params.ignore_eos = true;
    params.n = n;
    params.sampling.temperature = temperature;
    params.sampling.frequency_penalty = temperature > 0 ? 0.5f : 0.0f;
    params.sampling.seed = size;
    params.has_seed = true;
    out.push_back(std::move(params));
  }
  return out;
}

using Tokens = std::vector<std::map<uint32_t, std::vector<int32_t>>>;

Tokens run(Scheduler& scheduler, std::vector<RequestParams> all) {
  std::map<uint64_t, std::map<uint32_t, std::vector<int32_t>>> out;
  run_requests(scheduler, std::move(all), [&](const Event& event) {
    auto& to = out[event.request_id][event.index];
    to.insert(to.end(), event.tokens.begin(), event.tokens.end());
  });
  return values_of(std::move(out));
}

// Drafted and accepted by the drafter of that name.
std::pair<int64_t, int64_t> counts_of(Scheduler& scheduler, const std::string& name) {
  for (const auto& drafter : scheduler.report().speculation.drafters) {
    if (drafter.name == name) return {static_cast<int64_t>(drafter.drafted), static_cast<int64_t>(drafter.accepted)};
  }
  FAIL("no drafter " << name);
  return {};
}

}  // namespace

TEST_CASE("a model as drafter changes no token, greedy or drawn") {
  const ModelHandle model = load_llama();
  for (const float temperature : {0.0f, 1.2f}) {
    for (const uint32_t n : {1u, 3u}) {
      INFO("temperature " << temperature << ", " << n << " samples");
      const Tokens expected = run(*scheduler_of(model, options_with("off")), requests(temperature, n));
      // Its own guesses always stand; those of another model of as many tokens now and then.
      const std::string same = "model:" + kShipped + "llama", other = "model:" + kShipped + "qwen3";
      const auto agreeing = scheduler_of(model, options_with(same));
      CHECK(run(*agreeing, requests(temperature, n)) == expected);
      const auto [drafted, accepted] = counts_of(*agreeing, same);
      CHECK(drafted > 20);
      if (temperature > 0.0f) {
        CHECK(accepted == drafted);
      } else {
        // What else may come is verified beside them.
        const auto told = agreeing->report().speculation;
        uint64_t first = 0;
        for (const auto& drafter : told.drafters) first += drafter.accepted_at[0];
        CHECK(first == told.steps);
      }
      for (const std::string& names : {other, "suffix," + other}) {
        const auto differing = scheduler_of(model, options_with(names));
        CHECK(run(*differing, requests(temperature, n)) == expected);
        const auto counts = counts_of(*differing, other);
        CHECK(counts.first > 0);
        CHECK(counts.second < counts.first);
      }
    }
  }
}

TEST_CASE("a real model of another vocabulary changes no token, and its guesses stand") {
  const std::string folder = HEADRACE_MODELS_DIR;
  const std::string files[] = {folder + "/qwen2.5-coder-0.5b.gguf", folder + "/smollm2-135m.gguf"};
  for (const std::string& file : files) {
    if (folder.empty() || !std::ifstream(file).good()) {
      std::puts("SKIPPED: HEADRACE_MODELS_DIR with the models is not there");
      return;
    }
  }
  const std::string name = "model:" + files[1];
  EngineOptions options;
  options.drafter = name;
  ModelSource source;
  source.path = files[0];
  const ModelHandle model = load_source(std::move(source), options);
  std::vector<RequestParams> asked;
  for (const char* text : {"def binary_search(items, wanted):\n    low, high = 0, len(items) - 1\n    while",
                           "The tides come about because the moon", "\u6f22\u5b57 \U0001F642 1234 "}) {
    RequestParams params;
    params.prompt = *model->tokenizer->encode(text);
    params.max_tokens = 32;
    params.ignore_eos = true;
    params.sampling.temperature = asked.empty() ? 0.0f : 0.7f;
    params.sampling.seed = 3;
    params.has_seed = true;
    asked.push_back(std::move(params));
  }
  const Tokens expected = run(*scheduler_of(model, EngineOptions()), asked);
  options.draft_always = true;
  options.max_draft_tokens = 4;
  const auto scheduler = scheduler_of(model, options);
  CHECK(run(*scheduler, asked) == expected);
  const auto [drafted, accepted] = counts_of(*scheduler, name);
  CHECK(drafted > 60);
  CHECK(accepted * 5 > drafted);
}

TEST_CASE("a request's report says that a recurrent state keeps it to chains") {
  const std::string recurrent = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/draft_heads/qwen3_next";
  for (const std::string& path : {recurrent, kShipped + "llama"}) {
    ModelSource source;
    source.path = path;
    const ModelHandle model = load_source(std::move(source), options_with("off"));
    for (const bool always : {false, true}) {
      for (const char* drafter : {"suffix", "off"}) {
        INFO(path << ", " << drafter << (always ? ", always" : ""));
        EngineOptions options = options_with(drafter);
        options.draft_always = always;
        std::vector<RequestParams> asked = requests(0.0f, 1);
        for (RequestParams& params : asked) {
          for (int32_t& id : params.prompt) id = 3 + id % 60;
        }
        int finished = 0;
        run_requests(*scheduler_of(model, options), std::move(asked), [&](const Event& event) {
          if (event.type != EventType::kFinished) return;
          ++finished;
          const bool expected = path == recurrent && !always && std::string(drafter) != "off";
          CHECK(event.usage.speculation.chains_for_state == expected);
        });
        CHECK(finished == 3);
      }
    }
  }
}

TEST_CASE("a drafter that is named twice is one") {
  const ModelHandle model = load_llama();
  const std::string name = "model:" + kShipped + "llama";
  const auto scheduler = scheduler_of(model, options_with(name + "," + name));
  int count = 0;
  for (const auto& drafter : scheduler->report().speculation.drafters) count += drafter.name == name ? 1 : 0;
  CHECK(count == 1);
}

TEST_CASE("a drafter that cannot serve is refused with the scheduler") {
  const ModelHandle model = load_llama();
  const auto refused = [&](const std::string& name) {
    return Scheduler::create(model, nullptr, options_with(name)).status();
  };
  CHECK(refused("model:" + kShipped + "nothing").code() == StatusCode::kNotFound);
  const Status other = refused("model:" + std::string(HEADRACE_SOURCE_DIR) + "/tests/data/draft_heads/eagle3_target");
  CHECK(other.code() == StatusCode::kInvalidArgument);
  CHECK(other.place().find("scheduler.drafter") != std::string::npos);
  CHECK(other.message().find("not both have a tokenizer") != std::string::npos);
}

TEST_CASE("heads are refused where there are none, and where they are of another model") {
  const std::string heads = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/draft_heads/";
  const auto refused = [&](const std::string& model, const std::string& name) {
    ModelSource source;
    source.path = model;
    const auto loaded = load_source(std::move(source), options_with("off"));
    const Status status = Scheduler::create(loaded, nullptr, options_with(name)).status();
    CHECK(status.place().find("scheduler.drafter") == 0);
    return status.code();
  };
  const std::string llama = kShipped + "llama", ahead = heads + "glm4_moe";
  CHECK(refused(llama, "mtp") == StatusCode::kNotFound);
  CHECK(refused(llama, "mtp:" + ahead) == StatusCode::kInvalidArgument);
  CHECK(refused(llama, "mtp:" + heads + "nowhere") == StatusCode::kNotFound);
  CHECK(refused(llama, "eagle3:" + heads + "eagle3") == StatusCode::kInvalidArgument);
  CHECK(refused(ahead, "eagle3:" + ahead) == StatusCode::kUnsupported);
  CHECK(refused(llama, "eagle:" + heads + "eagle") == StatusCode::kInvalidArgument);
  CHECK(refused(llama, "medusa:" + heads + "medusa") == StatusCode::kInvalidArgument);
  CHECK(refused(llama, "dflash:" + heads + "dflash") == StatusCode::kInvalidArgument);
  CHECK(refused(llama, "eagle3:") == StatusCode::kInvalidArgument);
  CHECK(refused(llama, "mtp2") == StatusCode::kInvalidArgument);
}
