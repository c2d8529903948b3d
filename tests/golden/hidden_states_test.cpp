// Hidden states against transformers', and the laws of giving them out: they change nothing, and depend on no cut.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "golden/golden_run.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";

std::vector<int32_t> all_layers(const ModelSpec& spec) {
  std::vector<int32_t> layers(spec.layers.size() + 1);
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

// What one pass of the whole sequence gives: logits of the last row, and the tap's values.
struct TappedRun {
  Status status;
  std::vector<float> logits, values;
};

TappedRun run_tapped(ForwardPass& forward, const ModelSpec& spec, const std::vector<int32_t>& ids, HiddenTap tap,
                     int64_t first_logits) {
  TappedRun out;
  auto cache = make_cache(spec, KvDType::kF32);
  const auto size = static_cast<int64_t>(ids.size());
  KvSequence sequence = cache->new_sequence({}, rope_length(spec, size));
  REQUIRE(cache->reserve(sequence, size).ok());
  Batch batch;
  batch.add_sequence(*cache, sequence, ids, size, first_logits);
  out.logits.resize(batch.logits_rows.size() * static_cast<size_t>(spec.vocab_size));
  out.values.resize(tap.layers.size() * static_cast<size_t>(tap.num_rows) * static_cast<size_t>(spec.hidden_size));
  tap.out = out.values.data();
  batch.hidden_taps.push_back(tap);
  out.status = forward.run(batch, *cache, out.logits.empty() ? nullptr : out.logits.data());
  return out;
}

bool equal_to(const std::vector<float>& values, const float* expected) {
  return std::equal(values.begin(), values.end(), expected);
}

void check_hidden_states(const std::string& folder, const std::vector<int32_t>& ids, const Tensor& expected,
                         double tolerance) {
  for (const auto& backend : all_backends()) {
    INFO(folder << " " << backend->name());
    const auto model = load_model(read_header(source_at(folder)), *backend);
    const ModelSpec& spec = model->spec();
    ForwardPass forward(spec, model->weights(), *backend);
    const auto rows = static_cast<int32_t>(ids.size());
    const TappedRun run = run_tapped(forward, spec, ids, {all_layers(spec), 0, rows, nullptr}, rows - 1);
    INFO(run.status.to_string());
    if (!std::holds_alternative<OneStream>(spec.streams)) {
      CHECK(run.status.code() == StatusCode::kUnsupported);
      continue;
    }
    REQUIRE(run.status.ok());
    REQUIRE(expected.values.size() == run.values.size());
    if (spec.architecture == "mamba" || spec.architecture == "mamba2") {
      // transformers gives what leaves each of these layers, and then what the head reads.
      const auto layer = static_cast<ptrdiff_t>(ids.size()) * spec.hidden_size;
      const auto inner = layer * static_cast<ptrdiff_t>(spec.layers.size() - 1);
      const auto ours = run.values.begin(), theirs = expected.values.begin();
      CHECK(max_difference({ours + layer, ours + layer + inner}, {theirs, theirs + inner}) <= tolerance);
      CHECK(max_difference({run.values.end() - layer, run.values.end()},
                           {expected.values.end() - layer, expected.values.end()}) <= tolerance);
      continue;
    }
    CHECK(max_difference(run.values, expected.values) <= tolerance);
  }
}

}  // namespace

TEST_CASE("shipped models give transformers' hidden states") {
  for (const std::string name : {"llama", "gemma3"}) {
    auto file = SafetensorsFile::open_path(kShipped + name + "/hidden_states.safetensors");
    REQUIRE(file.ok());
    const TensorEntry* entry = (*file)->find("p40.layers");
    REQUIRE(entry != nullptr);
    Tensor expected{entry->shape, std::vector<float>(entry->bytes / 4)};
    REQUIRE((*file)->read(*entry, 0, std::as_writable_bytes(std::span(expected.values))).ok());
    const Golden golden(kShipped + name);
    check_hidden_states(kShipped + name, golden.ids("p40.input_ids"), expected, golden.tolerance());
  }
}

TEST_CASE("golden decoders give transformers' hidden states") {
  if (!have_golden(kModels + "llama")) return;
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    const std::string folder = entry.path().string();
    const Golden golden(folder);
    if (!golden.has("p5.layers") || !golden.has("p5.logits")) continue;
    const ModelHeader header = read_header(source_at(folder));
    if (attends_both_ways(header.spec) || header.encoder) continue;
    const Tensor expected = golden.floats("p5.layers");
    if (expected.shape.size() != 3 || expected.shape[0] != header.spec.layers.size() + 1) continue;
    check_hidden_states(folder, golden.ids("p5.input_ids"), expected, golden.tolerance());
    ++checked;
  }
  CHECK(checked > 50);
}

// Which rows are given, of which layers, and beside which logits, changes no bit of them and none of the logits.
TEST_CASE("hidden states depend on nothing that is wanted beside them") {
  std::vector<std::string> folders = {kShipped + "llama", kShipped + "gemma3"};
  if (have_golden(kModels + "llama")) {
    for (const char* name : {"gemma3n_text", "qwen3_next", "falcon_h1", "deepseek_v3", "kimi_linear", "olmo2", "phi"}) {
      folders.push_back(kModels + name);
    }
  }
  for (const std::string& folder : folders) {
    const Golden golden(folder);
    const std::vector<int32_t> ids = golden.ids(golden.has("p33.input_ids") ? "p33.input_ids" : "p40.input_ids");
    const auto backend = std::move(all_backends().back());
    const auto model = load_model(read_header(source_at(folder)), *backend);
    const ModelSpec& spec = model->spec();
    INFO(folder);
    ForwardPass forward(spec, model->weights(), *backend);
    const auto rows = static_cast<int32_t>(ids.size());
    const auto num_layers = static_cast<int32_t>(spec.layers.size());
    const bool one_stream = std::holds_alternative<OneStream>(spec.streams);
    const std::vector<int32_t> layers = one_stream ? all_layers(spec) : std::vector<int32_t>{0, num_layers};
    const TappedRun whole = run_tapped(forward, spec, ids, {layers, 0, rows, nullptr}, 0);
    REQUIRE(whole.status.ok());
    const auto hidden = static_cast<size_t>(spec.hidden_size);
    const float* const last_logits =
        whole.logits.data() + static_cast<size_t>(rows - 1) * static_cast<size_t>(spec.vocab_size);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (const auto& [first, count] : {std::pair{0, rows}, {3, 7}, {rows - 1, 1}, {0, 1}}) {
        for (const int64_t first_logits : {int64_t{rows - 1}, int64_t{rows}}) {
          INFO("layer " << layers[layer] << " rows " << first << " " << count << " logits " << first_logits);
          const TappedRun part = run_tapped(forward, spec, ids, {{layers[layer]}, first, count, nullptr}, first_logits);
          REQUIRE(part.status.ok());
          const float* const expected =
              whole.values.data() + (layer * ids.size() + static_cast<size_t>(first)) * hidden;
          CHECK(equal_to(part.values, expected));
          CHECK(equal_to(part.logits, last_logits));
        }
      }
    }
  }
}

TEST_CASE("taps that name nothing are refused") {
  const auto backend = make_reference_backend();
  const auto model = load_model(read_header(source_at(kShipped + "llama")), *backend);
  ForwardPass forward(model->spec(), model->weights(), *backend);
  const std::vector<int32_t> ids = {3, 4, 5};
  const auto place_of = [&](HiddenTap tap) {
    return run_tapped(forward, model->spec(), ids, std::move(tap), 2).status.place();
  };
  CHECK(place_of({{0, 3}, 0, 3, nullptr}) == "hidden_taps: layers[1]");
  CHECK(place_of({{-1}, 0, 3, nullptr}) == "hidden_taps: layers[0]");
  CHECK(place_of({{1, 2, 1}, 0, 3, nullptr}) == "hidden_taps: layers[2]");
  CHECK(place_of({{1}, 1, 3, nullptr}) == "hidden_taps");
  CHECK(place_of({{1}, 0, 3, nullptr}).empty());
}
