// Models with recurrent layers: transformers' logits, and one arithmetic for any cut, with states that go on.
#include <cstdio>

#include "golden/golden_checks.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

bool have_data() {
  if (!kData.empty() && file_exists(kModels + "lfm2/golden.json")) return true;
  std::puts("SKIPPED: the larger golden models are not there");
  return false;
}

}  // namespace

TEST_CASE("recurrent models from safetensors") {
  if (!have_data()) return;
  for (const std::string name : {"lfm2", "mamba", "mamba2", "falcon_h1", "qwen3_5_text", "qwen3_next"}) {
    INFO(name);
    check_source(source_at(kModels + name), Golden(kModels + name), kAllCases);
  }
}

TEST_CASE("recurrent models from GGUF") {
  if (!have_data()) return;
  for (const std::string name : {"lfm2", "mamba", "mamba2", "falcon_h1"}) {
    INFO(name);
    check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases);
  }
}

TEST_CASE("recurrent models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string name : {"lfm2", "mamba", "mamba2", "falcon_h1", "qwen3_5_text", "qwen3_next"}) {
    INFO(name);
    check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids"));
  }
}

// The others' hidden states are recorded elsewhere in their layers.
TEST_CASE("layer outputs of recurrent models") {
  if (!have_data()) return;
  for (const std::string name : {"qwen3_5_text", "qwen3_next"}) {
    INFO(name);
    check_layers(kModels + name, Golden(kModels + name));
  }
}
