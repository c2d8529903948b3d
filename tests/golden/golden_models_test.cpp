// Tiny models of every family against transformers' float32 logits, on every backend of this machine. A small
// set ships with the repository; HEADRACE_TEST_DATA adds the variants.
#include <cstdio>

#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";
const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";

const std::vector<std::string> kNames = {"llama",      "llama_tied",  "llama_bf16",      "llama_bias_linear",
                                         "llama_yarn", "mistral",     "qwen2",           "qwen2_sliding",
                                         "qwen3",      "gemma3_text", "gemma3_text_bf16"};

bool have_data() {
  if (!kData.empty() && file_exists(kModels + "llama/golden.json")) return true;
  std::puts("the larger golden models are not there; the shipped ones are tested");
  return false;
}

}  // namespace

TEST_CASE("shipped models give transformers' logits") {
  for (const std::string name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    const std::string folder = kShipped + name;
    INFO(name);
    REQUIRE(file_exists(folder + "/model.safetensors"));
    const Golden golden(folder);
    check_source(source_at(folder), golden, {"p40"});
    check_source(source_at(folder + "/model.safetensors"), golden, {"p40"});
    if (file_exists(folder + "/model.gguf")) check_source(source_at(folder + "/model.gguf"), golden, {"p40"});
  }
}

TEST_CASE("shipped models do not depend on the cut") {
  for (const std::string name : {"llama", "gemma3"}) {
    INFO(name);
    check_cuts(kShipped + name, Golden(kShipped + name).ids("p40.input_ids"));
  }
}

TEST_CASE("golden models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    INFO(name);
    const Golden golden(kModels + name);
    check_source(source_at(kModels + name), golden, kAllCases);
  }
}

TEST_CASE("the older config style means the same") {
  if (!have_data()) return;
  for (const std::string& name : kNames) check_older_config(kModels + name);
}

TEST_CASE("golden models from GGUF") {
  if (!have_data()) return;
  for (const std::string name :
       {"llama", "llama_tied", "llama_bf16", "llama_bias_linear", "llama_yarn", "qwen2", "qwen3"}) {
    INFO(name);
    check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases);
  }
  // Converted without their window: equal as long as it hides nothing.
  for (const std::string name : {"mistral", "qwen2_sliding"}) {
    INFO(name);
    check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), {"p5"});
  }
}

// GGUF has no place for this model's attention scale and layer pattern; the spec is data, so they are put
// back.
TEST_CASE("gemma3 from GGUF with the attention of its config") {
  if (!have_data()) return;
  for (const std::string name : {"gemma3_text", "gemma3_text_bf16"}) {
    INFO(name);
    const Golden golden(kModels + name);
    const ModelHeader original = read_header(source_at(kModels + name));
    for (const auto& backend : all_backends()) {
      ModelHeader header = read_header(source_at(kGguf + name + ".gguf"));
      CHECK(header.spec.norm_weight_offset == 0.0f);
      for (size_t i = 0; i < header.spec.layers.size(); ++i) {
        header.spec.layers[i].attention = original.spec.layers[i].attention;
      }
      const auto model = load_model(std::move(header), *backend);
      check_case(*model, *backend, golden, "p33");
    }
  }
}

TEST_CASE("the text part of an image-text model") {
  if (!have_data()) return;
  check_source(source_at(kModels + "gemma3_vlm"), Golden(kModels + "gemma3_vlm"), {"p33"});
}

TEST_CASE("layer outputs") {
  if (!have_data()) return;
  for (const std::string name : {"llama", "llama_bias_linear", "qwen2", "qwen3", "gemma3_text"}) {
    INFO(name);
    check_layers(kModels + name, Golden(kModels + name));
  }
}

TEST_CASE("golden models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string name : {"llama", "qwen2_sliding", "qwen3", "gemma3_text"}) {
    INFO(name);
    check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids"));
  }
}
