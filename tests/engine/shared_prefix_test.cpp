// Requests whose long prompts begin alike: their decoded rows walk the cached blocks that they share together
// (cpu/attention_tiles.h), and every one of them has the bits that it has alone.
#include <filesystem>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include "engine/real_requests.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

constexpr int64_t kContext = 2048;

// A tiny model of the repository with room for long prompts.
ModelHandle load_long(const std::string& name, const EngineOptions& options) {
  const std::string folder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/" + name;
  std::ifstream file(folder + "/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["max_position_embeddings"] = kContext;
  ModelSource source;
  auto bytes = open_path(folder + "/model.safetensors");
  REQUIRE(bytes.ok());
  source.sources.push_back(bytes.take());
  source.config_json = config.dump();
  return load_source(std::move(source), options);
}

// Tokens and logprobs by request and sample.
using Outputs = std::map<std::pair<uint64_t, uint32_t>, std::pair<std::vector<int32_t>, std::vector<float>>>;

Outputs run(const ModelHandle& model, const EngineOptions& options, const std::vector<RequestParams>& requests,
            int64_t* cached_tokens = nullptr) {
  const auto scheduler = scheduler_of(model, options);
  Outputs out;
  run_requests(*scheduler, requests, [&](const Event& event) {
    auto& [tokens, logprobs] = out[{event.request_id, event.index}];
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  });
  if (cached_tokens != nullptr) *cached_tokens = static_cast<int64_t>(scheduler->stats().cached_tokens);
  return out;
}

}  // namespace

TEST_CASE("requests that share long prefixes have the bits that they have alone") {
  for (const char* name : {"qwen3", "gemma3"}) {  // the second with windows
    for (const KvDType dtype : {KvDType::kF16, KvDType::kQ8}) {
      for (const int32_t threads : {1, 2}) {
        INFO(name << ", " << kv_dtype_name(dtype) << ", " << threads << " threads");
        EngineOptions options;
        options.threads = threads;
        options.kv_dtype = dtype;
        options.kv_max_tokens = 3 * kContext;
        const ModelHandle model = load_long(name, options);
        // All share one split of 512 positions, the last two another, and the samples of one request its whole prompt.
        const std::vector<int32_t> first = seeded_tokens(530, 1, 3, 90), second = seeded_tokens(560, 2, 3, 90);
        std::vector<RequestParams> requests;
        for (size_t i = 0; i < 4; ++i) {
          RequestParams params;
          params.prompt = first;
          if (i >= 2) params.prompt.insert(params.prompt.end(), second.begin(), second.end());
          const std::vector<int32_t> own = seeded_tokens(5 * i + 1, 10 + i, 3, 90);
          params.prompt.insert(params.prompt.end(), own.begin(), own.end());
          params.max_tokens = 6;
          params.ignore_eos = true;
          params.num_logprobs = 0;
          params.sampling.temperature = 1.0f;
          params.sampling.seed = 5 + i;
          params.has_seed = true;
          params.n = i == 3 ? 3 : 1;
          requests.push_back(params);
        }
        int64_t cached = 0;
        const Outputs together = run(model, options, requests, &cached);
        CHECK(cached >= 512 + 512 + 1024);
        REQUIRE(together.size() == 6);
        const uint64_t first_id = together.begin()->first.first;
        for (size_t i = 0; i < requests.size(); ++i) {
          const Outputs alone = run(model, options, {requests[i]});
          for (const auto& [key, output] : alone) {
            const auto& [tokens, logprobs] = together.at({first_id + i, key.second});
            CHECK(tokens == output.first);
            CHECK(equal_bits(logprobs, output.second));
          }
        }
      }
    }
  }
}
