// Models with recurrent layers: transformers' logits, and one arithmetic for any cut, with states that go on.
#include <cstdio>

#include "golden/golden_checks.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

const std::vector<std::string> kNames = {
    "lfm2",         "lfm2_moe",         "mamba",      "mamba2",      "falcon_h1",
    "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid", "granitemoehybrid",
    "nemotron_h",   "kimi_linear"};

bool have_data() {
  if (!kData.empty() && file_exists(kModels + "lfm2/golden.json")) return true;
  std::puts("SKIPPED: the larger golden models are not there");
  return false;
}

}  // namespace

TEST_CASE("recurrent models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("recurrent models from GGUF") {
  if (!have_data()) return;
  for (const std::string name : {"lfm2", "lfm2_moe", "mamba", "mamba2", "falcon_h1", "nemotron_h"}) {
    DYNAMIC_SECTION(name) { check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases); }
  }
}

// GGUF has no place for the rotation of this model, whose kin do not rotate. Its converter did not know the layer for one
// with attention: there are no KV heads in the metadata, and rows of q and k are in the order of halves.
TEST_CASE("granite hybrids from GGUF with the rotation of the config") {
  if (!have_data()) return;
  const std::string name = "granitemoehybrid";
  const ModelHeader original = read_header(source_at(kModels + name));
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(source_at(kGguf + name + ".gguf"));
    for (size_t i = 0; i < header.spec.layers.size(); ++i) {
      auto* attention = std::get_if<GqaAttention>(&header.spec.layers[i].attention);
      if (attention == nullptr) continue;
      CHECK(attention->rope == RopeSpec());
      attention->rope = std::get<GqaAttention>(original.spec.layers[i].attention).rope;
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, Golden(kModels + name), "p33");
  }
}

TEST_CASE("recurrent models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// The others' hidden states are recorded elsewhere in their layers.
TEST_CASE("layer outputs of recurrent models") {
  if (!have_data()) return;
  for (const std::string name : {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "lfm2_moe", "olmo_hybrid",
                                 "granitemoehybrid", "nemotron_h", "kimi_linear"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("recurrent models in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    if (!file_exists(kModels + name + "/config_v4.json")) continue;
    INFO(name);
    const ModelHeader newer = read_header(source_with_config(kModels + name, "config.json"));
    const ModelHeader older = read_header(source_with_config(kModels + name, "config_v4.json"));
    CHECK(spec_to_json(newer.spec) == spec_to_json(older.spec));
    CHECK(newer.spec == older.spec);
  }
}

TEST_CASE("a key that no list of a recurrent family names is refused by name") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    INFO(name);
    ModelSource source = source_with_config(kModels + name, "config.json");
    source.config_json.insert(source.config_json.find('{') + 1, "\"attention_twist\": 2,");
    const auto header = ModelHeader::read(source);
    REQUIRE_FALSE(header.ok());
    CHECK(header.status().code() == StatusCode::kUnsupported);
    CHECK(header.status().place().find("/attention_twist") != std::string::npos);
  }
}
