// Heads that predict further ahead against a plain reading of their published form (make_draft_heads.py).
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include <nlohmann/json.hpp>

#include "golden/golden_run.h"
#include "model/dflash_head.h"
#include "model/eagle3_head.h"
#include "model/fused_head.h"
#include "model/medusa_heads.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kFolder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/draft_heads/";
struct Expected {
  std::vector<int32_t> ids, draft_ids;
  std::vector<float> features, logits, next, margin, noise;  // next: not of Medusa heads

  explicit Expected(const std::string& name) {
    auto file = SafetensorsFile::open_path(kFolder + name + "/draft.safetensors");
    REQUIRE(file.ok());
    const auto read = [&](const char* tensor, auto& out) {
      const TensorEntry* entry = (*file)->find(tensor);
      if (entry == nullptr) return;
      out.resize(entry->bytes / 4);
      REQUIRE((*file)->read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
    };
    read("input_ids", ids);
    read("draft_ids", draft_ids);
    read("features", features);
    read("logits", logits);
    read("next", next);
    read("draft_margin", margin);
    read("noise", noise);
  }
  // As of golden models: ten times what float32 takes from the reference itself.
  double tolerance() const { return std::max(10 * static_cast<double>(noise.at(0)), 1e-4); }
};

struct LoadedHead {
  std::shared_ptr<const Model> model;
  std::unique_ptr<DraftHead> head;
};

LoadedHead load_head(const std::string& name, const std::shared_ptr<Backend>& backend) {
  LoadedHead out;
  ModelHeader header = read_header(source_at(kFolder + name));
  auto head = FusedHeadHeader::read_ahead_layer(header);
  INFO(head.status().to_string());
  REQUIRE(head.ok());
  auto weights = FusedHeadWeights::load(*head, {}, *backend);
  INFO(weights.status().to_string());
  REQUIRE(weights.ok());
  out.model = load_model(std::move(header), *backend);
  out.head = std::make_unique<FusedHead>(head->spec, weights.take(), out.model, backend);
  return out;
}

// Of the model in eagle3_target.
template <class Head, class Weights, class Header>
LoadedHead load_eagle(const Result<Header>& header, std::shared_ptr<const Model> model,
                      const std::shared_ptr<Backend>& backend) {
  INFO(header.status().to_string());
  REQUIRE(header.ok());
  auto weights = Weights::load(*header, {}, *backend);
  INFO(weights.status().to_string());
  REQUIRE(weights.ok());
  LoadedHead out;
  out.model = std::move(model);
  out.head = std::make_unique<Head>(header->spec, weights.take(), out.model, backend);
  return out;
}

std::shared_ptr<const Model> load_target(Backend& backend) {
  return load_model(read_header(source_at(kFolder + "eagle3_target")), backend);
}

struct HeadResult {
  std::vector<float> logits, next;
};

// Rows [sequence.num_tokens(), end) of tokens with features from the same row on.
HeadResult run_rows(DraftHead& head, KvCache& cache, KvSequence& sequence, const std::vector<int32_t>& tokens,
                    const float* features, int64_t end) {
  const int64_t begin = sequence.num_tokens();
  REQUIRE(cache.reserve(sequence, end).ok());
  Batch batch;
  batch.add_sequence(cache, sequence, tokens, end, begin);
  HeadResult out;
  out.logits.resize(static_cast<size_t>((end - begin) * head.vocab_size()));
  out.next.resize(static_cast<size_t>((end - begin) * head.hidden_size()));
  const Status status = head.run(batch, features, cache, out.logits.data(), out.next.data());
  INFO(status.to_string());
  REQUIRE(status.ok());
  REQUIRE(cache.commit(sequence, tokens, end).ok());
  return out;
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

std::shared_ptr<KvCache> head_cache(const DraftHead& head) {
  KvCacheConfig config;
  config.layers = head.kv_layouts(KvDType::kF32, 16);
  config.num_blocks = 16;
  auto cache = KvCache::create(std::move(config));
  REQUIRE(cache.ok());
  return cache.take();
}

// The model's hidden states of the first rows: [rows, layers, hidden_size].
std::vector<float> hidden_of(const Model& model, Backend& backend, const std::vector<int32_t>& layers, int64_t rows,
                             const std::vector<int32_t>& ids) {
  const ModelSpec& spec = model.spec();
  ForwardPass forward(spec, model.weights(), backend);
  auto cache = make_cache(spec, KvDType::kF32);
  KvSequence sequence = cache->new_sequence();
  REQUIRE(cache->reserve(sequence, rows).ok());
  Batch batch;
  batch.add_sequence(*cache, sequence, ids, rows, rows);
  const auto hidden = static_cast<size_t>(spec.hidden_size), count = static_cast<size_t>(rows);
  std::vector<float> tapped(layers.size() * count * hidden), beside(tapped.size());
  batch.hidden_taps.push_back({layers, 0, static_cast<int32_t>(rows), tapped.data()});
  REQUIRE(forward.run(batch, *cache, nullptr).ok());
  for (size_t row = 0; row < count; ++row) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      std::copy_n(tapped.data() + (layer * count + row) * hidden, hidden,
                  beside.data() + (row * layers.size() + layer) * hidden);
    }
  }
  return beside;
}

// Those of all rows but the last, as the head wants them.
std::vector<float> features_of(const LoadedHead& loaded, Backend& backend, const std::vector<int32_t>& ids) {
  const auto rows = static_cast<int64_t>(ids.size()) - 1;
  const std::vector<float> beside = hidden_of(*loaded.model, backend, loaded.head->feature_layers(), rows, ids);
  std::vector<float> features(static_cast<size_t>(rows * loaded.head->hidden_size()));
  REQUIRE(loaded.head->project(beside.data(), rows, features.data()).ok());
  return features;
}

// Where both are minus infinity they are equal.
double difference_of_logits(std::vector<float> got, std::vector<float> expected) {
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    if (got[i] == -INFINITY && expected[i] == -INFINITY) got[i] = expected[i] = 0.0f;
  }
  return max_difference(got, expected);
}

// One case against the reference, in one piece and cut, then guesses behind the last row.
void check_head(const LoadedHead& loaded, Backend& backend, const Expected& expected) {
  DraftHead& head = *loaded.head;
  const auto rows = static_cast<int64_t>(expected.ids.size()) - 1;
  const int64_t hidden = head.hidden_size();
  const std::vector<float> features = features_of(loaded, backend, expected.ids);
  CHECK(max_difference(features, expected.features) <= expected.tolerance());

  std::vector<int32_t> tokens(expected.ids.begin() + 1, expected.ids.end());
  auto cache = head_cache(head);
  KvSequence sequence = cache->new_sequence();
  const HeadResult all = run_rows(head, *cache, sequence, tokens, features.data(), rows);
  CHECK(difference_of_logits(all.logits, expected.logits) <= expected.tolerance());
  CHECK(max_difference(all.next, expected.next) <= expected.tolerance());

  KvSequence cut = cache->new_sequence("cut");
  HeadResult parts;
  for (const int64_t end : {int64_t{7}, int64_t{8}, rows}) {
    const HeadResult part = run_rows(head, *cache, cut, tokens, features.data() + cut.num_tokens() * hidden, end);
    append(parts.logits, part.logits);
    append(parts.next, part.next);
  }
  CHECK(parts.logits == all.logits);
  CHECK(parts.next == all.next);

  std::vector<float> logits(all.logits.end() - head.vocab_size(), all.logits.end());
  std::vector<float> next(all.next.end() - hidden, all.next.end());
  for (size_t i = 0; i < expected.draft_ids.size() && expected.margin[i] > 1e-3f; ++i) {
    const int32_t guess = argmax(logits.data(), head.vocab_size());
    CHECK(guess == expected.draft_ids[i]);
    tokens.push_back(guess);
    HeadResult row = run_rows(head, *cache, sequence, tokens, next.data(), static_cast<int64_t>(tokens.size()));
    logits = std::move(row.logits);
    next = std::move(row.next);
  }
}

}  // namespace

TEST_CASE("layers ahead give the logits of their published form") {
  for (const std::string name : {"deepseek_v3", "glm4_moe", "qwen3_next"}) {
    const Expected expected(name);
    for (auto& owned : all_backends()) {
      const std::shared_ptr<Backend> backend = std::move(owned);
      INFO(name << " " << backend->name());
      check_head(load_head(name, backend), *backend, expected);
    }
  }
}

TEST_CASE("EAGLE-3 heads of both layouts give the logits of their published form") {
  for (const std::string name : {"eagle3", "eagle3_speculators"}) {
    const Expected expected(name);
    for (auto& owned : all_backends()) {
      const std::shared_ptr<Backend> backend = std::move(owned);
      INFO(name << " " << backend->name());
      const auto model = load_target(*backend);
      const auto header = Eagle3Header::read(kFolder + name, model->spec());
      check_head(load_eagle<Eagle3Head, Eagle3Weights>(header, model, backend), *backend, expected);
    }
  }
}

TEST_CASE("EAGLE heads give the logits of their published form") {
  const Expected expected("eagle");
  for (auto& owned : all_backends()) {
    const std::shared_ptr<Backend> backend = std::move(owned);
    INFO(backend->name());
    const auto model = load_target(*backend);
    const auto header = FusedHeadHeader::read_eagle(kFolder + "eagle", model->spec());
    check_head(load_eagle<FusedHead, FusedHeadWeights>(header, model, backend), *backend, expected);
  }
}

TEST_CASE("Medusa heads of all layouts give the logits of their published form") {
  for (const std::string name : {"medusa", "medusa_vllm", "medusa_truncated"}) {
    const Expected expected(name);
    for (auto& owned : all_backends()) {
      const std::shared_ptr<Backend> backend = std::move(owned);
      INFO(name << " " << backend->name());
      const auto model = load_target(*backend);
      const auto header = MedusaHeader::read(kFolder + name, model->spec());
      INFO(header.status().to_string());
      REQUIRE(header.ok());
      auto weights = MedusaWeights::load(*header, {}, *backend);
      INFO(weights.status().to_string());
      REQUIRE(weights.ok());
      MedusaHeads heads(header->spec, weights.take(), model, backend);
      REQUIRE(heads.spec().num_heads == static_cast<int32_t>(expected.draft_ids.size()));
      const auto rows = static_cast<int64_t>(expected.ids.size()) - 1;
      const auto vocab_size = static_cast<size_t>(heads.spec().vocab_size);
      std::vector<float> all;
      for (int32_t head = 0; head < heads.spec().num_heads; ++head) {
        std::vector<float> logits(static_cast<size_t>(rows) * vocab_size), last(vocab_size);
        REQUIRE(heads.run(head, expected.features.data(), rows, logits.data()).ok());
        append(all, logits);
        // A row alone gets the bits that it gets among others.
        const float* const row = expected.features.data() + (rows - 1) * heads.spec().hidden_size;
        REQUIRE(heads.run(head, row, 1, last.data()).ok());
        CHECK(std::equal(last.begin(), last.end(), logits.end() - static_cast<ptrdiff_t>(vocab_size)));
        CHECK(argmax(last.data(), heads.spec().vocab_size) == expected.draft_ids[static_cast<size_t>(head)]);
      }
      CHECK(difference_of_logits(all, expected.logits) <= expected.tolerance());
    }
  }
}

namespace {

// Rows [begin, end) of a sequence with room for them.
Batch rows_of(KvCache& cache, const KvSequence& sequence, const std::vector<int32_t>& tokens, int64_t begin) {
  Batch batch;
  const auto end = static_cast<int64_t>(tokens.size());
  for (int64_t row = begin; row < end; ++row) {
    batch.token_ids.push_back(tokens[static_cast<size_t>(row)]);
    batch.positions.push_back(static_cast<int32_t>(row));
    batch.slots.push_back(cache.slot(sequence, row));
  }
  batch.query_start = {0, static_cast<int32_t>(end - begin)};
  batch.block_tables = {sequence.block_ids().data()};
  return batch;
}

// The logits of the block that the last token begins, with the context stored in pieces that end there.
std::vector<float> block_logits(DflashHead& head, KvCache& cache, const std::vector<int32_t>& ids,
                                const std::vector<float>& context, std::vector<int64_t> ends) {
  KvSequence sequence = cache.new_sequence(std::to_string(ends.size()));
  for (const int64_t end : ends) {
    const int64_t begin = sequence.num_tokens();
    REQUIRE(cache.reserve(sequence, end).ok());
    const std::vector<int32_t> front(ids.begin(), ids.begin() + end);
    const Batch batch = rows_of(cache, sequence, front, begin);
    REQUIRE(head.store(batch, context.data() + begin * head.hidden_size(), cache).ok());
    REQUIRE(cache.commit(sequence, ids, end).ok());
  }
  std::vector<int32_t> block = ids;
  const auto guessed = static_cast<size_t>(head.spec().block_size) - 1;
  block.resize(ids.size() + guessed, head.spec().mask_token_id);
  REQUIRE(cache.reserve(sequence, static_cast<int64_t>(block.size())).ok());
  Batch batch = rows_of(cache, sequence, block, sequence.num_tokens());
  for (int32_t row = 1; row <= static_cast<int32_t>(guessed); ++row) batch.logits_rows.push_back(row);
  std::vector<float> logits(guessed * static_cast<size_t>(head.vocab_size()));
  const Status status = head.guess(batch, cache, logits.data());
  INFO(status.to_string());
  REQUIRE(status.ok());
  return logits;
}

// What reading the DFlash head says with these keys of its config.json set to other values.
Status refused_dflash(const ModelSpec& model, const nlohmann::json& changes) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "headrace_dflash_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  fs::copy_file(kFolder + "dflash/model.safetensors", folder + "/model.safetensors");
  std::ifstream in(kFolder + "dflash/config.json");
  nlohmann::json json = nlohmann::json::parse(in);
  json.merge_patch(changes);
  std::ofstream(folder + "/config.json") << json;
  const Status status = DflashHeader::read(folder, model).status();
  fs::remove_all(folder);
  return status;
}

}  // namespace

TEST_CASE("a DFlash head gives the logits of its published form") {
  const Expected expected("dflash");
  for (auto& owned : all_backends()) {
    const std::shared_ptr<Backend> backend = std::move(owned);
    INFO(backend->name());
    const auto model = load_target(*backend);
    const auto header = DflashHeader::read(kFolder + "dflash", model->spec());
    INFO(header.status().to_string());
    REQUIRE(header.ok());
    auto weights = DflashWeights::load(*header, {}, *backend);
    INFO(weights.status().to_string());
    REQUIRE(weights.ok());
    DflashHead head(header->spec, weights.take(), model, backend);
    CHECK(head.spec().feature_layers == std::vector<int32_t>{2, 4, 6});
    const auto rows = static_cast<int64_t>(expected.ids.size()) - 1;
    const std::vector<float> beside = hidden_of(*model, *backend, head.spec().feature_layers, rows, expected.ids);
    std::vector<float> context(static_cast<size_t>(rows * head.hidden_size()));
    REQUIRE(head.project(beside.data(), rows, context.data()).ok());
    CHECK(max_difference(context, expected.features) <= expected.tolerance());

    KvCacheConfig config;
    config.layers = head.kv_layouts(KvDType::kF32, 16);
    config.num_blocks = 16;
    const auto cache = KvCache::create(std::move(config)).take();
    const std::vector<float> logits = block_logits(head, *cache, expected.ids, context, {rows});
    CHECK(max_difference(logits, expected.logits) <= expected.tolerance());
    CHECK(block_logits(head, *cache, expected.ids, context, {7, 8, rows}) == logits);
    for (size_t i = 0; i < expected.draft_ids.size(); ++i) {
      CHECK(argmax(logits.data() + i * static_cast<size_t>(head.vocab_size()), head.vocab_size()) ==
            expected.draft_ids[i]);
    }
  }
}

TEST_CASE("a DFlash head that would be computed otherwise is refused by its key or tensor") {
  const ModelHeader target = read_header(source_at(kFolder + "eagle3_target"));
  const auto refused = [&](const char* changes, const std::string& place, StatusCode code) {
    INFO(changes);
    const Status status = refused_dflash(target.spec, nlohmann::json::parse(changes));
    INFO(status.to_string());
    CHECK(status.code() == code);
    CHECK(status.place().find(place) != std::string::npos);
  };
  CHECK(refused_dflash(target.spec, nlohmann::json::object()).ok());
  refused(R"({"vocab_size": 65})", "/vocab_size", StatusCode::kInvalidArgument);
  refused(R"({"hidden_size": 32})", "/hidden_size", StatusCode::kInvalidArgument);
  refused(R"({"num_target_layers": 8})", "/num_target_layers", StatusCode::kInvalidArgument);
  refused(R"({"model_type": "llama"})", "/model_type", StatusCode::kUnsupported);
  refused(R"({"conv_kernel": 4})", "/conv_kernel", StatusCode::kUnsupported);
  refused(
      R"({"use_sliding_window": true, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]})",
      "/layer_types", StatusCode::kUnsupported);
  refused(R"({"block_size": 1})", "/block_size", StatusCode::kMalformed);
  refused(R"({"block_size": null})", "/dflash_config/block_size", StatusCode::kMalformed);
  refused(R"({"dflash_config": {"mask_token_id": 64}})", "/dflash_config/mask_token_id", StatusCode::kMalformed);
  const std::string layers = "/dflash_config/target_layer_ids";
  refused(R"({"dflash_config": {"target_layer_ids": [1, 7]}})", layers, StatusCode::kInvalidArgument);
  refused(R"({"dflash_config": {"target_layer_ids": [3, 1, 5]}})", layers, StatusCode::kUnsupported);
  refused(R"({"dflash_config": {"target_layer_ids": null}})", layers, StatusCode::kNotFound);
  refused(R"({"dflash_config": {"candidate_selector": {}}})", "/dflash_config/candidate_selector",
          StatusCode::kUnsupported);
  // Another shape than the file's, a tensor that is not there, and one too many.
  refused(R"({"dflash_config": {"target_layer_ids": [1, 3]}})", "fc.weight", StatusCode::kMalformed);
  refused(R"({"num_hidden_layers": 3, "layer_types": null})", "layers.2.", StatusCode::kNotFound);
  refused(R"({"num_hidden_layers": 1, "layer_types": null})", "layers.1.", StatusCode::kUnsupported);
}

TEST_CASE("a head of another model is refused by name") {
  const ModelHeader other = read_header(source_at(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/llama"));
  const auto head = Eagle3Header::read(kFolder + "eagle3", other.spec);
  CHECK(head.status().code() == StatusCode::kInvalidArgument);
  CHECK(head.status().place().find("/vocab_size") != std::string::npos);
  const auto eagle = FusedHeadHeader::read_eagle(kFolder + "eagle", other.spec);
  CHECK(eagle.status().code() == StatusCode::kInvalidArgument);
  CHECK(eagle.status().place().find("/vocab_size") != std::string::npos);
  const auto medusa = MedusaHeader::read(kFolder + "medusa", other.spec);
  CHECK(medusa.status().code() == StatusCode::kInvalidArgument);
  CHECK(medusa.status().place().find("0.2.weight") != std::string::npos);
  CHECK(MedusaHeader::read(kFolder + "eagle3", other.spec).status().code() == StatusCode::kNotFound);
}

TEST_CASE("a token map that names no tokens, or not all, is refused") {
  std::string made = (std::filesystem::temp_directory_path() / "headrace_medusa_XXXXXX").string();
  REQUIRE(mkdtemp(made.data()) != nullptr);
  const ModelHeader target = read_header(source_at(kFolder + "eagle3_target"));
  const auto refused = [&](const std::string& from, const std::function<void(std::string&, std::string&)>& change) {
    const auto bytes_of = [](const std::string& path) {
      std::ifstream in(path, std::ios::binary);
      return std::string{std::istreambuf_iterator<char>(in), {}};
    };
    std::string config = bytes_of(kFolder + from + "/config.json");
    std::string weights = bytes_of(kFolder + from + "/model.safetensors");
    change(config, weights);
    std::ofstream(made + "/config.json", std::ios::binary) << config;
    std::ofstream(made + "/model.safetensors", std::ios::binary) << weights;
    const Status status = MedusaHeader::read(made, target.spec).status();
    const std::string& place = status.place();
    return std::pair(status.code(), place.substr(std::min(place.size(), place.find_last_of("/: ") + 1)));
  };
  const auto replace = [](std::string& in, const std::string& from, const std::string& to) {
    REQUIRE(in.find(from) != std::string::npos);
    in.replace(in.find(from), from.size(), to);
  };
  auto file = SafetensorsFile::open_path(kFolder + "medusa_truncated/model.safetensors");
  REQUIRE(file.ok());
  const TensorEntry* map = (*file)->find("token_map");
  REQUIRE(map != nullptr);
  const auto untouched = [](std::string&, std::string&) {};
  CHECK(refused("medusa_truncated", untouched).first == StatusCode::kOk);
  using Place = std::pair<StatusCode, std::string>;
  CHECK(refused("medusa_truncated", [&](std::string&, std::string& weights) { weights[map->offset + 1] = 1; }) ==
        Place{StatusCode::kMalformed, "token_map"});
  CHECK(refused("medusa_truncated", [&](std::string&, std::string& weights) {
          weights[map->offset] = weights[map->offset + 8];
        }) == Place{StatusCode::kMalformed, "token_map"});
  CHECK(refused("medusa_truncated", [&](std::string&, std::string& weights) {
          replace(weights, "\"token_map\"", "\"token_mop\"");
        }) == Place{StatusCode::kNotFound, "token_map"});
  CHECK(refused("medusa_vllm", [&](std::string& config, std::string&) {
          replace(config, "truncated_vocab_size\": 64", "truncated_vocab_size\": 40");
        }) == Place{StatusCode::kInvalidArgument, "lm_heads.0.weight"});
  std::filesystem::remove_all(made);
}

TEST_CASE("a model without layers ahead says so") {
  const ModelHeader header = read_header(source_at(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/llama"));
  CHECK(FusedHeadHeader::read_ahead_layer(header).status().code() == StatusCode::kNotFound);
  const ModelHeader one = read_header(source_at(kFolder + "deepseek_v3"));
  CHECK(FusedHeadHeader::read_ahead_layer(one, 1).status().code() == StatusCode::kNotFound);
}
