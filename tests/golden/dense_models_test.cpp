// Tiny dense decoders of the smaller families against transformers' float32 logits, on every backend of this machine, from
// HEADRACE_TEST_DATA.
#include "golden/golden_checks.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

const std::vector<std::string> kNames = {"phi3",       "gemma2",   "olmo2",    "olmo3",   "granite",
                                         "glm4",       "smollm3",  "cohere",   "cohere2", "exaone4",
                                         "starcoder2", "stablelm", "seed_oss", "arcee",   "hunyuan_v1_dense",
                                         "ministral3", "phi",      "gpt_neox", "gpt2",    "nemotron"};

bool have_data() {
  if (!kData.empty() && file_exists(kModels + "phi3/golden.json")) return true;
  std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
  return false;
}

}  // namespace

TEST_CASE("dense models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("dense models in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    if (!file_exists(kModels + name + "/config_v4.json")) continue;
    DYNAMIC_SECTION(name) {
      const ModelHeader newer = read_header(source_with_config(kModels + name, "config.json"));
      const ModelHeader older = read_header(source_with_config(kModels + name, "config_v4.json"));
      CHECK(spec_to_json(newer.spec) == spec_to_json(older.spec));
      CHECK(newer.spec == older.spec);
    }
  }
}

TEST_CASE("dense models from GGUF") {
  if (!have_data()) return;
  for (const std::string name :
       {"olmo2", "olmo3", "granite", "cohere", "exaone4", "stablelm", "seed_oss", "arcee", "ministral3", "phi"}) {
    DYNAMIC_SECTION(name) { check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases); }
  }
  // Converted without its window: equal as long as it hides nothing.
  DYNAMIC_SECTION("starcoder2") {
    check_source(source_at(kGguf + "starcoder2.gguf"), Golden(kModels + "starcoder2"), {"p5"});
  }
}

// GGUF does not say which layers do not rotate; the spec is data, so the golden's pattern is put in.
TEST_CASE("smollm3 from GGUF with the rotations of its config") {
  if (!have_data()) return;
  const Golden golden(kModels + "smollm3");
  const ModelHeader original = read_header(source_at(kModels + "smollm3"));
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(source_at(kGguf + "smollm3.gguf"));
    RopeSpec rope = std::get<GqaAttention>(header.spec.layers[0].attention).rope;
    CHECK(rope.interleaved);
    for (size_t i = 0; i < header.spec.layers.size(); ++i) {
      const bool rotates = std::get<GqaAttention>(original.spec.layers[i].attention).rope.rotary_dim > 0;
      std::get<GqaAttention>(header.spec.layers[i].attention).rope = rotates ? rope : RopeSpec();
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, golden, "p33");
  }
}

TEST_CASE("layer outputs of dense models") {
  if (!have_data()) return;
  for (const std::string name : {"gemma2", "olmo2", "granite", "glm4", "cohere", "gpt_neox", "gpt2", "nemotron"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("dense models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// Dynamic NTK changes the rotation of a whole sequence with its length: up to the length the model was trained for it is
// the plain one, and the model claims no longer sequences.
TEST_CASE("a dynamic rope type is the plain rotation within the trained length") {
  if (!have_data()) return;
  const Golden golden(kModels + "llama_dynamic_ntk");
  const ModelSource source = source_at(kModels + "llama_dynamic_ntk");
  CHECK(read_header(source).spec.max_position_embeddings == 64);
  check_source(source, golden, {"p5", "p33"});
  check_source(source_at(kGguf + "llama_dynamic_ntk.gguf"), golden, {"p5", "p33"});
}
