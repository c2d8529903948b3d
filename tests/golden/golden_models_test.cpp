// Tiny models of every family against transformers' float32 logits, on every backend of this machine. A small
// set ships with the repository; HEADRACE_TEST_DATA adds the variants.
#include <cstdio>

#include "golden/golden_run.h"

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

void check_case(const Model& model, Backend& backend, const Golden& golden, const std::string& name) {
  INFO(backend.name() << " " << name);
  ForwardPass forward(model.spec(), model.weights(), backend);
  auto cache = make_cache(model.spec(), KvDType::kF32);
  const std::vector<int32_t> ids = golden.ids(name + ".input_ids");
  const PromptResult result = run_prompt(forward, model.spec(), *cache, ids);
  check_logits(golden, name, result.logits, model.spec().vocab_size);
  if (golden.has(name + ".hidden")) {
    CHECK(max_difference(result.hidden, golden.floats(name + ".hidden").values) <= golden.tolerance());
  }
  if (golden.has(name + ".greedy")) {
    check_greedy(golden, name, run_greedy(forward, model.spec(), *cache, ids, 24));
  }
  REQUIRE(cache->check_invariants().ok());
}

void check_source(const ModelSource& source, const Golden& golden, const std::vector<std::string>& cases) {
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(source), *backend);
    for (const std::string& name : cases) {
      if (!golden.has(name + ".input_ids")) continue;
      // The reference is slow and has nothing to show at length that the others do not.
      if (name == "p150" && backend->name() == "reference") continue;
      check_case(*model, *backend, golden, name);
    }
  }
}

const std::vector<std::string> kAllCases = {"p5", "p33", "p150"};

// After the embedding and after each layer; the last entry of the goldens is after the final norm.
void check_layers(const std::string& folder, const Golden& golden) {
  auto backend = make_reference_backend();
  const auto model = load_model(read_header(source_at(folder)), *backend);
  const Tensor expected = golden.floats("p5.layers");
  const size_t layer_floats = expected.shape[1] * expected.shape[2];
  ForwardPass forward(model->spec(), model->weights(), *backend);
  int32_t seen = 0;
  forward.set_layer_observer([&](int32_t layer, const float* x, int64_t num_tokens) {
    REQUIRE(static_cast<uint64_t>(num_tokens) == expected.shape[1]);
    ++seen;
    if (layer == static_cast<int32_t>(expected.shape[0]) - 1) return;
    const float* want = expected.values.data() + static_cast<size_t>(layer) * layer_floats;
    INFO("layer " << layer);
    CHECK(max_difference({x, x + layer_floats}, {want, want + layer_floats}) <= golden.tolerance());
  });
  auto cache = make_cache(model->spec(), KvDType::kF32);
  const PromptResult result = run_prompt(forward, model->spec(), *cache, golden.ids("p5.input_ids"));
  CHECK(seen == static_cast<int32_t>(expected.shape[0]));
  const float* last = expected.values.data() + (expected.shape[0] - 1) * layer_floats;
  CHECK(max_difference(result.hidden, {last, last + layer_floats}) <= golden.tolerance());
}

// One arithmetic for any cut: whole, in chunks, and beside other sequences, bit for bit.
void check_cuts(const std::string& path, const std::vector<int32_t>& ids) {
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(source_at(path)), *backend);
    const ModelSpec& spec = model->spec();
    ForwardPass forward(spec, model->weights(), *backend);
    const bool slow = backend->name() == "reference";
    const std::vector<int32_t> prompt(ids.begin(),
                                      ids.begin() + (slow ? std::min<int64_t>(33, static_cast<int64_t>(ids.size()))
                                                          : static_cast<int64_t>(ids.size())));
    for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
      INFO(backend->name() << " kv " << kv_dtype_name(dtype));
      auto cache = make_cache(spec, dtype);
      const PromptResult whole = run_prompt(forward, spec, *cache, prompt);
      for (const int64_t chunk : {1, 7, 64}) {
        INFO("chunks of " << chunk);
        const PromptResult cut = run_prompt(forward, spec, *cache, prompt, chunk);
        CHECK(cut.logits == whole.logits);
        CHECK(cut.hidden == whole.hidden);
      }

      // Three sequences in one batch: the prompt, its reverse, and the prompt from the middle; only last rows
      // wanted.
      const std::vector<int32_t> reversed(prompt.rbegin(), prompt.rend());
      const std::vector<int32_t> half(prompt.begin() + static_cast<int64_t>(prompt.size() / 2), prompt.end());
      std::vector<KvSequence> sequences;
      Batch batch;
      for (const auto* tokens : {&reversed, &prompt, &half}) {
        sequences.push_back(cache->new_sequence("batch"));
        REQUIRE(cache->reserve(sequences.back(), static_cast<int64_t>(tokens->size())).ok());
      }
      size_t next = 0;
      for (const auto* tokens : {&reversed, &prompt, &half}) {
        add_rows(batch, *cache, sequences[next++], *tokens, 0, static_cast<int64_t>(tokens->size()), false);
      }
      std::vector<float> logits(3 * static_cast<size_t>(spec.vocab_size));
      REQUIRE(forward.run(batch, *cache, logits.data()).ok());
      const std::vector<float> got(logits.begin() + spec.vocab_size, logits.begin() + 2 * spec.vocab_size);
      CHECK(got == std::vector<float>(whole.logits.end() - spec.vocab_size, whole.logits.end()));
    }
  }
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
  for (const std::string& name : kNames) {
    if (!file_exists(kModels + name + "/config_v4.json")) continue;
    INFO(name);
    const ModelHeader newer = read_header(source_with_config(kModels + name, "config.json"));
    const ModelHeader older = read_header(source_with_config(kModels + name, "config_v4.json"));
    CHECK(spec_to_json(newer.spec) == spec_to_json(older.spec));
    CHECK(newer.spec == older.spec);
  }
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

TEST_CASE("other architectures are refused by name") {
  if (!have_data()) return;
  for (const std::string name : {"mixtral", "gemma2", "mamba", "qwen3_moe", "phi3", "deepseek_v3"}) {
    const auto header = ModelHeader::read(source_at(kModels + name));
    INFO(name << ": " << header.status().to_string());
    REQUIRE_FALSE(header.ok());
    CHECK(header.status().code() == StatusCode::kUnsupported);
    CHECK(header.status().place().find("/architectures") != std::string::npos);
  }
  const auto dynamic = ModelHeader::read(source_at(kModels + "llama_dynamic_ntk"));
  REQUIRE_FALSE(dynamic.ok());
  CHECK(dynamic.status().place().find("/rope_parameters/rope_type") != std::string::npos);
  CHECK(dynamic.status().message().find("dynamic") != std::string::npos);
}
