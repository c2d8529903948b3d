// Tiny mixtures of experts against transformers' float32 logits, on every backend of this machine, from
// HEADRACE_TEST_DATA.
#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

const std::vector<std::string> kNames = {"mixtral",    "qwen3_moe",   "qwen2_moe",    "gpt_oss",       "ernie4_5_moe",
                                         "hy_v3",      "deepseek_v2", "deepseek_v3",  "glm4_moe_lite", "glm4_moe",
                                         "minimax_m2", "llama4_text", "mimo_v2_flash"};

bool have_data() { return have_golden(kModels + "mixtral"); }

// What a case shows at most, for people.
void report(const std::string& name, const ModelSource& source, const Golden& golden) {
  for (const auto& backend : all_backends()) {
    if (backend->name() == "reference") continue;
    const auto model = load_model(read_header(source), *backend);
    ForwardPass forward(model->spec(), model->weights(), *backend);
    double worst = 0;
    for (const std::string& prompt : kAllCases) {
      auto cache = make_cache(model->spec(), KvDType::kF32);
      const PromptResult result = run_prompt(forward, model->spec(), *cache, golden.ids(prompt + ".input_ids"));
      worst = std::max(worst, max_difference(result.logits, golden.floats(prompt + ".logits").values));
    }
    std::printf("%-16s %-18s largest difference %.2e, allowed %.2e\n", name.c_str(),
                std::string(backend->name()).c_str(), worst, golden.tolerance());
  }
}

}  // namespace

TEST_CASE("mixtures of experts from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      report(name, source_at(kModels + name), golden);
      check_source(source_at(kModels + name), golden, kAllCases);
    }
  }
}

TEST_CASE("mixtures of experts in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_older_config(kModels + name); }
  }
}

TEST_CASE("mixtures of experts from GGUF") {
  if (!have_data()) return;
  for (const std::string name : {"mixtral", "gpt_oss", "gpt_oss_bf16", "hy_v3", "deepseek_v2", "deepseek_v3"}) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      report(name + ".gguf", source_at(kGguf + name + ".gguf"), golden);
      check_source(source_at(kGguf + name + ".gguf"), golden, kAllCases);
    }
  }
}

// GGUF has no place for this model's chunk, layers without rotation and temperature; the spec is data, so they are put
// back.
TEST_CASE("llama4 from GGUF with the attention of its config") {
  if (!have_data()) return;
  const Golden golden(kModels + "llama4_text");
  const ModelHeader original = read_header(source_at(kModels + "llama4_text"));
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(source_at(kGguf + "llama4_text.gguf"));
    for (size_t i = 0; i < header.spec.layers.size(); ++i) {
      header.spec.layers[i].attention = original.spec.layers[i].attention;
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, golden, "p33");
  }
}

TEST_CASE("layer outputs of mixtures of experts") {
  if (!have_data()) return;
  for (const std::string name : {"mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("mixtures of experts do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string name :
       {"mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3", "deepseek_v2", "llama4_text", "mimo_v2_flash"}) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// The goldens were computed in float32 from the rounded weights.
TEST_CASE("mixtures of experts with bfloat16 weights") {
  if (!have_data()) return;
  for (const std::string name : {"qwen3_moe_bf16", "gpt_oss_bf16"}) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      for (const auto& backend : all_backends()) {
        const auto model = load_model(read_header(source_at(kModels + name)), *backend);
        check_case(*model, *backend, golden, "p33");
      }
    }
  }
}

namespace {

// The status of a folder whose config has one text replaced by another.
Status read_changed(const std::string& name, const std::string& from, const std::string& to) {
  ModelSource source = source_with_config(kModels + name, "config.json");
  const size_t at = source.config_json.find(from);
  REQUIRE(at != std::string::npos);
  source.config_json.replace(at, from.size(), to);
  const auto header = ModelHeader::read(source);
  INFO(name << ": " << header.status().to_string());
  REQUIRE_FALSE(header.ok());
  return header.status();
}

}  // namespace

TEST_CASE("a key that no list of a family names is refused by name") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    const Status status = read_changed(name, "{", "{\"attention_twist\": 2,");
    CHECK(status.code() == StatusCode::kUnsupported);
    CHECK(status.place().find("/attention_twist") != std::string::npos);
  }
}

TEST_CASE("experts that the file does not hold are refused by name") {
  if (!have_data()) return;
  const auto check = [](const std::string& name, const std::string& count, StatusCode code, const std::string& place) {
    const Status status = read_changed(name, "\"num_local_experts\": 8", "\"num_local_experts\": " + count);
    INFO(name << " " << count << ": " << status.to_string());
    CHECK(status.code() == code);
    CHECK(status.place().find(place) != std::string::npos);
  };
  check("mixtral", "9", StatusCode::kMalformed, "block_sparse_moe.gate.weight");
  check("gpt_oss", "4", StatusCode::kMalformed, "mlp.router.weight");
  check("gpt_oss", "0", StatusCode::kMalformed, "/num_local_experts");
  check("mixtral", "16777216", StatusCode::kMalformed, "/num_local_experts");
  // Half as wide experts leave rows of the stacked tensors over.
  const Status narrow = read_changed("gpt_oss", "\"intermediate_size\": 32", "\"intermediate_size\": 16");
  CHECK(narrow.code() == StatusCode::kMalformed);
  CHECK(narrow.place().find("mlp.experts.") != std::string::npos);
  const Status ranks = read_changed("deepseek_v3", "\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 8");
  CHECK(ranks.code() == StatusCode::kUnsupported);  // contradicts qk_head_dim
}
