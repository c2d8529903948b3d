// Checks of golden models on every backend of this machine: logits, layers, greedy tokens, and cuts of a sequence.
#pragma once

#include <algorithm>
#include <cstdio>

#include "golden/golden_run.h"
#include "model/model_header.h"
#include "unit/gguf_writer.h"

namespace headrace::golden {

inline void check_case(const Model& model, Backend& backend, const Golden& golden, const std::string& name) {
  INFO(backend.name() << " " << name);
  ForwardPass forward(model.spec(), model.weights(), backend);
  constexpr int kNewTokens = 24;
  const std::vector<int32_t> ids = golden.ids(name + ".input_ids");
  auto cache = make_cache(model.spec(), KvDType::kF32);
  const PromptResult result = run_prompt(forward, model.spec(), *cache, ids);
  check_logits(golden, name, result.logits, model.spec().vocab_size);
  if (golden.has(name + ".hidden")) {
    CHECK(max_difference(result.hidden, golden.floats(name + ".hidden").values) <= golden.tolerance());
  }
  if (golden.has(name + ".greedy")) {
    check_greedy(golden, name, run_greedy(forward, model.spec(), *cache, ids, kNewTokens));
  }
  REQUIRE(cache->check_invariants().ok());
}

inline void check_source(const ModelSource& source, const Golden& golden, const std::vector<std::string>& cases) {
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

// Where a folder has its config in the older style too, both say the same.
inline void check_older_config(const std::string& folder) {
  if (!file_exists(folder + "/config_v4.json")) return;
  INFO(folder);
  const ModelHeader newer = read_header(source_with_config(folder, "config.json"));
  const ModelHeader older = read_header(source_with_config(folder, "config_v4.json"));
  CHECK(spec_to_json(newer.spec) == spec_to_json(older.spec));
  CHECK(newer.spec == older.spec);
}

inline const std::vector<std::string> kAllCases = {"p5", "p33", "p150"};

// After the embedding and after each layer; the last entry of the goldens is after the final norm.
inline void check_layers(const std::string& folder, const Golden& golden) {
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
inline void check_cuts(const std::string& path, const std::vector<int32_t>& ids) {
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
        sequences.push_back(cache->new_sequence("batch", rope_length(spec, static_cast<int64_t>(tokens->size()))));
        REQUIRE(cache->reserve(sequences.back(), static_cast<int64_t>(tokens->size())).ok());
      }
      size_t next = 0;
      for (const auto* tokens : {&reversed, &prompt, &half}) {
        add_rows(batch, *cache, sequences[next++], *tokens, static_cast<int64_t>(tokens->size()), false);
      }
      std::vector<float> logits(3 * static_cast<size_t>(spec.vocab_size));
      REQUIRE(forward.run(batch, *cache, logits.data()).ok());
      const std::vector<float> got(logits.begin() + spec.vocab_size, logits.begin() + 2 * spec.vocab_size);
      CHECK(got == std::vector<float>(whole.logits.end() - spec.vocab_size, whole.logits.end()));
    }
  }
}

// The end of a prompt behind cached blocks, and behind values saved to a file and read back, bit for bit.
inline void check_cached_prefix(const std::string& path, const std::vector<int32_t>& ids) {
  const auto half = static_cast<int64_t>(ids.size() / 2);
  for (const auto& backend : all_backends()) {
    if (backend->name() == "reference") continue;
    const auto model = load_model(read_header(source_at(path)), *backend);
    const ModelSpec& spec = model->spec();
    ForwardPass forward(spec, model->weights(), *backend);
    for (const KvDType dtype : {KvDType::kF32, KvDType::kQ8}) {
      INFO(backend->name() << " kv " << kv_dtype_name(dtype));
      auto cache = make_cache(spec, dtype);
      const PromptResult whole = run_prompt(forward, spec, *cache, ids);
      const std::vector<float> expected(whole.logits.end() - spec.vocab_size, whole.logits.end());
      const auto check_rest = [&](KvCache& warm, KvSequence sequence) {
        REQUIRE(sequence.num_tokens() > 0);
        REQUIRE(warm.reserve(sequence, static_cast<int64_t>(ids.size())).ok());
        Batch batch;
        add_rows(batch, warm, sequence, ids, static_cast<int64_t>(ids.size()), false);
        std::vector<float> logits(static_cast<size_t>(spec.vocab_size));
        REQUIRE(forward.run(batch, warm, logits.data()).ok());
        CHECK(logits == expected);
      };
      const int64_t rotation = rope_length(spec, static_cast<int64_t>(ids.size()));
      KvSequence hit = cache->new_sequence({}, rotation);
      REQUIRE(cache->match_prefix(hit, ids, half) > 0);
      check_rest(*cache, std::move(hit));

      KvSequence saved = cache->new_sequence({}, rotation);
      REQUIRE(cache->match_prefix(saved, ids, half) > 0);
      std::string file;
      const Status written = cache->save(saved, ids, [&](std::span<const std::byte> bytes) {
        file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return Status();
      });
      REQUIRE(written.ok());
      auto other = make_cache(spec, dtype);
      const auto source = source_of(std::move(file), "saved");
      auto restored = other->restore(*source, {}, rotation);
      INFO(restored.status().to_string());
      REQUIRE(restored.ok());
      check_rest(*other, std::move(restored->sequence));
    }
  }
}

}  // namespace headrace::golden
