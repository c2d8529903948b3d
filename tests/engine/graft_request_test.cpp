// Grafts as requests meet them: adapters that belong to the model, and an encoder that text never runs.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "engine/image_reader.h"
#include "engine/model_executor.h"
#include "engine/real_requests.h"
#include "engine/scheduler.h"
#include "engine/session.h"
#include "model/model.h"
#include "model/model_header.h"

namespace fs = std::filesystem;
using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;
using nlohmann::json;

namespace {

using Tokens = std::vector<int32_t>;

const std::string kLlama = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/llama";

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "headrace_graft_request_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  std::string graft(const std::string& base, json members) const {
    members["format"] = "headrace graft 1";
    members["base"] = base;
    std::ofstream(*this / "graft.json") << members.dump();
    return *this / "graft.json";
  }

  // Of the queries' projection and the feed-forward's last, in PEFT's form.
  std::string adapter(const std::string& name, uint64_t seed, int64_t rank) const {
    fs::create_directory(path_ / name);
    std::ofstream(*this / (name + "/adapter_config.json")) << json{
        {"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", 2 * rank}, {"target_modules", {"q_proj", "down_proj"}}};
    json header;
    std::string data;
    const auto add = [&](const std::string& tensor, int64_t rows, int64_t cols) {
      const size_t begin = data.size();
      for (int64_t i = 0; i < rows * cols; ++i) {
        const uint64_t key[3] = {seed, std::hash<std::string>()(tensor), static_cast<uint64_t>(i)};
        const float value = static_cast<float>(hash64(key, sizeof key) >> 40) * 0x1p-23f - 1.0f;
        data.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      header[tensor] = {{"dtype", "F32"}, {"shape", {rows, cols}}, {"data_offsets", {begin, data.size()}}};
    };
    for (const std::string layer : {"0", "1"}) {
      const std::string prefix = "base_model.model.model.layers." + layer;
      add(prefix + ".self_attn.q_proj.lora_A.weight", rank, 32);
      add(prefix + ".self_attn.q_proj.lora_B.weight", 64, rank);
      add(prefix + ".mlp.down_proj.lora_A.weight", rank, 48);
      add(prefix + ".mlp.down_proj.lora_B.weight", 32, rank);
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream out(*this / (name + "/adapter_model.safetensors"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size) << text << data;
    return *this / name;
  }

 private:
  fs::path path_;
};

ModelHandle load_at(const std::string& path, ProfileMode profile = ProfileMode::kOff) {
  EngineOptions options;
  options.threads = 2;
  options.profile = profile;
  ModelSource source;
  source.path = path;
  return load_source(std::move(source), options);
}

std::shared_ptr<const Adapter> load_adapter(const ModelHandle& model, const std::string& folder) {
  auto adapter = model->executor->load_adapter(folder);
  INFO(adapter.status().to_string());
  REQUIRE(adapter.ok());
  return adapter.take();
}

Tokens tokens_of(size_t size, uint64_t seed = 3) { return seeded_tokens(size, seed, 8, 80); }

struct Output {
  Tokens tokens;
  std::vector<float> logprobs;
  bool operator==(const Output&) const = default;
};

Output run(const ModelHandle& model, RequestParams params, std::shared_ptr<KvCache> cache = nullptr) {
  const auto scheduler = scheduler_of(model, EngineOptions(), std::move(cache));
  params.max_tokens = 12;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  Output out;
  run_requests(*scheduler, {std::move(params)}, [&](const Event& event) {
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    add_logprobs(out.logprobs, event);
  });
  return out;
}

RequestParams prompt(Tokens tokens, std::shared_ptr<const Adapter> adapter = nullptr) {
  RequestParams params;
  params.prompt = std::move(tokens);
  params.adapter = std::move(adapter);
  return params;
}

uint64_t calls(const EngineModel& model) {
  uint64_t sum = 0;
  for (const OpProfile::Sum& op : model.executor->profile()->sums()) sum += op.calls;
  return sum;
}

}  // namespace

TEST_CASE("adapters of a graft belong to all that it computes") {
  const Folder folder;
  const std::string a = folder.adapter("a", 1, 3), b = folder.adapter("b", 2, 5);
  const ModelHandle base = load_at(kLlama), with_a = load_at(folder.graft(kLlama, {{"adapters", {"a"}}}));
  const ModelHandle with_both = load_at(folder.graft(kLlama, {{"adapters", {"a", "b"}}}));
  const Tokens tokens = tokens_of(50);
  const Output plain = run(base, prompt(tokens));
  const Output adapted = run(base, prompt(tokens, load_adapter(base, a)));
  REQUIRE(adapted.logprobs != plain.logprobs);
  CHECK(run(with_a, prompt(tokens)) == adapted);
  // A request's own is added.
  const Output both = run(with_both, prompt(tokens));
  CHECK(both.logprobs != adapted.logprobs);
  CHECK(run(with_a, prompt(tokens, load_adapter(with_a, b))) == both);

  // Of sessions too, saved and restored.
  auto session = Session::create(with_a, nullptr, EngineOptions());
  REQUIRE(session.ok());
  REQUIRE((*session)->evaluate(std::span(tokens).first(40), nullptr).ok());
  REQUIRE((*session)->save(folder / "session").ok());
  REQUIRE((*session)->append_tokens(std::span(tokens).last(10)).ok());
  RequestParams params;
  params.session = *session;
  CHECK(run(with_a, params, (*session)->kv_cache()) == adapted);
  auto source = open_path(folder / "session");
  REQUIRE(source.ok());
  auto restored = Session::restore(with_a, nullptr, EngineOptions(), *source);
  INFO(restored.status().to_string());
  REQUIRE(restored.ok());
  REQUIRE((*restored)->append_tokens(std::span(tokens).last(10)).ok());
  params.session = *restored;
  CHECK(run(with_a, params, (*restored)->kv_cache()) == adapted);
  CHECK(Session::restore(base, nullptr, EngineOptions(), *source).status().code() == StatusCode::kFailedPrecondition);
  CHECK(Session::restore(with_both, nullptr, EngineOptions(), *source).status().code() ==
        StatusCode::kFailedPrecondition);

  ModelSource missing;
  missing.path = folder.graft(kLlama, {{"adapters", {"nowhere"}}});
  const auto refused = load_engine_model(missing, EngineOptions());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().place().find("nowhere/adapter_config.json") != std::string::npos);
}

TEST_CASE("an encoder in front of a decoder is run for images alone") {
  if (!fs::exists(kModels + "llava_clip")) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  const Folder folder;
  const ModelHandle base = load_at(kModels + "qwen2", ProfileMode::kSums);
  const json images = {{"from", kModels + "llava_clip"}, {"token", 6}};
  const ModelHandle graft = load_at(folder.graft(kModels + "qwen2", {{"images", images}}), ProfileMode::kSums);
  CHECK(run(graft, prompt(tokens_of(40))) == run(base, prompt(tokens_of(40))));
  const uint64_t of_text = calls(*base);
  CHECK(calls(*graft) == of_text);

  ImageReader& reader = *graft->executor->images();
  const auto floats = static_cast<size_t>(3 * reader.vision().image_size * reader.vision().image_size);
  const auto image = make_request_image(reader, std::vector<float>(floats, 0.25f), reader.vision().image_size,
                                        reader.vision().image_size);
  INFO(image.status().to_string());
  REQUIRE(image.ok());
  RequestParams params = prompt(tokens_of(40));
  params.prompt.insert(params.prompt.begin() + 10, 6);
  params.images = {*image};
  CHECK(run(graft, params).tokens.size() == 12);
  CHECK(calls(*graft) > 2 * of_text);
}
