// Golden models: loading one, running prompts through the cache, and comparing with transformers' logits.
#pragma once

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "kv/kv_cache.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/model_header.h"
#include "model/rope_length.h"
#include "ops/backend.h"

namespace headrace::golden {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline bool file_exists(const std::string& path) { return std::ifstream(path).good(); }

// The reference backend, and the CPU backend once per instruction set this machine has.
inline std::vector<std::unique_ptr<Backend>> all_backends(int num_threads = 2) {
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(make_reference_backend());
  for (const Isa isa : available_isas()) {
    auto backend = make_cpu_backend({isa, num_threads});
    REQUIRE(backend.ok());
    out.push_back(backend.take());
  }
  return out;
}

struct Tensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

// golden.safetensors with golden.json beside it.
class Golden {
 public:
  explicit Golden(const std::string& folder) {
    auto file = SafetensorsFile::open_path(folder + "/golden.safetensors");
    INFO(file.status().to_string());
    REQUIRE(file.ok());
    file_ = file.take();
    auto json = parse_json(read_file(folder + "/golden.json"), "golden.json");
    REQUIRE(json.ok());
    double worst = 0;
    for (const auto& pair : (*json)["noise"]) {
      for (const auto& value : pair) worst = std::max(worst, value.get<double>());
    }
    tolerance_ = std::max(10 * worst, 1e-4);
  }

  bool has(const std::string& name) const { return file_->find(name) != nullptr; }
  Tensor floats(const std::string& name) const {
    const TensorEntry* entry = file_->find(name);
    REQUIRE(entry != nullptr);
    REQUIRE(entry->dtype == DType::kF32);
    Tensor out{entry->shape, std::vector<float>(entry->bytes / 4)};
    REQUIRE(file_->read(*entry, 0, std::as_writable_bytes(std::span(out.values))).ok());
    return out;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const TensorEntry* entry = file_->find(name);
    REQUIRE(entry != nullptr);
    REQUIRE(entry->dtype == DType::kI32);
    std::vector<int32_t> out(entry->bytes / 4);
    REQUIRE(file_->read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
    return out;
  }
  // Largest allowed |difference| of logits: ten times the noise between transformers' own variants in
  // float32.
  double tolerance() const { return tolerance_; }

 private:
  std::shared_ptr<SafetensorsFile> file_;
  double tolerance_ = 0;
};

inline std::shared_ptr<KvCache> make_cache(const ModelSpec& spec, KvDType dtype, int64_t num_blocks = 64) {
  KvCacheConfig config;
  config.layers = kv_layouts(spec, dtype);
  config.num_blocks = num_blocks;
  config.state_floats = state_floats(spec);
  config.num_states = 4;
  config.max_snapshots = 8;
  config.snapshot_interval = 32;
  auto cache = KvCache::create(std::move(config));
  REQUIRE(cache.ok());
  return cache.take();
}

// Appends rows up to `end` of a sequence's tokens to the batch.
inline void add_rows(Batch& batch, KvCache& cache, KvSequence& sequence, const std::vector<int32_t>& ids, int64_t end,
                     bool all_logits) {
  batch.add_sequence(cache, sequence, ids, end, all_logits ? 0 : end - 1);
}

struct PromptResult {
  std::vector<float> logits;  // [ids.size(), vocab_size]
  std::vector<float> hidden;  // [ids.size(), hidden_size]
};

// The prompt in chunks of `chunk` rows (0: whole), logits of every row.
inline PromptResult run_prompt(ForwardPass& forward, const ModelSpec& spec, KvCache& cache,
                               const std::vector<int32_t>& ids, int64_t chunk = 0) {
  const auto total = static_cast<int64_t>(ids.size());
  PromptResult out;
  out.logits.resize(ids.size() * static_cast<size_t>(spec.vocab_size));
  out.hidden.resize(ids.size() * static_cast<size_t>(spec.hidden_size));
  KvSequence sequence = cache.new_sequence({}, rope_length(spec, total));
  if (chunk == 0) chunk = total;
  for (int64_t begin = 0; begin < total; begin += chunk) {
    const int64_t end = std::min(total, begin + chunk);
    REQUIRE(cache.reserve(sequence, end).ok());
    Batch batch;
    add_rows(batch, cache, sequence, ids, end, true);
    const Status status = forward.run(batch, cache, out.logits.data() + begin * spec.vocab_size,
                                      out.hidden.data() + begin * spec.hidden_size);
    INFO(status.to_string());
    REQUIRE(status.ok());
    REQUIRE(cache.commit(sequence, ids, end).ok());
  }
  return out;
}

inline int32_t argmax(const float* logits, int32_t vocab_size) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab_size) - logits);
}

// Prefill of the prompt, then one row at a time.
inline std::vector<int32_t> run_greedy(ForwardPass& forward, const ModelSpec& spec, KvCache& cache,
                                       std::vector<int32_t> ids, int count) {
  std::vector<int32_t> out;
  std::vector<float> logits(static_cast<size_t>(spec.vocab_size));
  KvSequence sequence = cache.new_sequence({}, rope_length(spec, static_cast<int64_t>(ids.size())));
  for (int i = 0; i < count; ++i) {
    const auto total = static_cast<int64_t>(ids.size());
    if (total > longest_of_rope_length(spec, sequence.rope_length())) {
      sequence = cache.new_sequence({}, rope_length(spec, total));
    }
    REQUIRE(cache.reserve(sequence, total).ok());
    Batch batch;
    add_rows(batch, cache, sequence, ids, total, false);
    REQUIRE(forward.run(batch, cache, logits.data()).ok());
    REQUIRE(cache.commit(sequence, ids, total).ok());
    out.push_back(argmax(logits.data(), spec.vocab_size));
    ids.push_back(out.back());
  }
  return out;
}

inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!std::isnan(worst) && !(difference <= worst)) worst = difference;  // NaN wins
  }
  return worst;
}

// The README's rules: logits within the tolerance, the same argmax wherever the golden margin exceeds 1e-3.
inline void check_logits(const Golden& golden, const std::string& name, const std::vector<float>& logits,
                         int32_t vocab_size) {
  const Tensor expected = golden.floats(name + ".logits");
  const double difference = max_difference(logits, expected.values);
  INFO(name << ": largest difference " << difference << ", allowed " << golden.tolerance());
  CHECK(difference <= golden.tolerance());
  for (size_t row = 0; row < expected.shape[0]; ++row) {
    const float* want = expected.values.data() + row * static_cast<size_t>(vocab_size);
    const float* got = logits.data() + row * static_cast<size_t>(vocab_size);
    const int32_t best = argmax(want, vocab_size);
    float second = -INFINITY;
    for (int32_t i = 0; i < vocab_size; ++i) {
      if (i != best) second = std::max(second, want[i]);
    }
    if (want[best] - second > 1e-3f) {
      INFO("row " << row);
      CHECK(argmax(got, vocab_size) == best);
    }
  }
}

// Greedy tokens equal up to the first step whose golden margin is under 1e-3.
inline void check_greedy(const Golden& golden, const std::string& name, const std::vector<int32_t>& tokens) {
  const std::vector<int32_t> expected = golden.ids(name + ".greedy");
  const Tensor margin = golden.floats(name + ".greedy_margin");
  REQUIRE(tokens.size() <= expected.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (margin.values[i] < 1e-3f) return;
    INFO(name << ": token " << i);
    REQUIRE(tokens[i] == expected[i]);
  }
}

inline std::shared_ptr<const Model> load_model(ModelHeader header, Backend& backend) {
  ModelLoadOptions options;
  options.load_tokenizer = false;
  auto model = Model::load(std::move(header), options, backend);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

inline ModelHeader read_header(const ModelSource& source) {
  auto header = ModelHeader::read(source);
  INFO(header.status().to_string());
  REQUIRE(header.ok());
  return header.take();
}

// The folder's weights under another config file of it.
inline ModelSource source_with_config(const std::string& folder, const std::string& config) {
  ModelSource source;
  auto bytes = open_path(folder + "/model.safetensors");
  REQUIRE(bytes.ok());
  source.sources.push_back(bytes.take());
  source.config_json = read_file(folder + "/" + config);
  return source;
}

// Whether HEADRACE_TEST_DATA has the golden folder; says so where not.
inline bool have_golden(const std::string& folder) {
  if (file_exists(folder + "/golden.json")) return true;
  std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
  return false;
}

// The folder's model under its config changed.
using ConfigChange = std::function<void(nlohmann::json&)>;

inline Result<ModelHeader> read_changed(const std::string& folder, const ConfigChange& change) {
  ModelSource source = source_with_config(folder, "config.json");
  nlohmann::json config = nlohmann::json::parse(source.config_json);
  change(config);
  source.config_json = config.dump();
  return ModelHeader::read(source);
}

inline void check_change_refused(const std::string& folder, StatusCode code, const std::string& place,
                                 const ConfigChange& change) {
  const auto changed = read_changed(folder, change);
  INFO(folder << " " << place << ": " << changed.status().to_string());
  REQUIRE_FALSE(changed.ok());
  CHECK(changed.status().code() == code);
  CHECK(changed.status().place().find(place) != std::string::npos);
}

inline ModelSource source_at(std::string path) {
  ModelSource source;
  source.path = std::move(path);
  return source;
}

}  // namespace headrace::golden
