// Encoders against transformers' hidden states, poolers and masked-language logits, on every backend of this machine.
#include <numeric>

#include "golden/converted_file.h"
#include "golden/golden_run.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";
const std::vector<std::string> kNames = {"bert", "roberta_mlm", "nomic_bert", "modernbert"};

bool have_data() { return have_golden(kModels + "bert"); }

// The rows of every sequence, one step; hidden [rows, hidden_size], and logits where the model has them.
PromptResult run_sequences(ForwardPass& forward, const ModelSpec& spec,
                           const std::vector<std::vector<int32_t>>& sequences) {
  auto cache = make_cache(spec, KvDType::kF32);
  std::vector<KvSequence> held;
  for (const auto& ids : sequences) {
    held.push_back(cache->new_sequence());
    REQUIRE(cache->reserve(held.back(), static_cast<int64_t>(ids.size())).ok());
  }
  Batch batch;
  for (size_t i = 0; i < sequences.size(); ++i) {
    add_rows(batch, *cache, held[i], sequences[i], static_cast<int64_t>(sequences[i].size()), true);
  }
  const auto rows = static_cast<size_t>(batch.num_tokens());
  const bool has_logits = spec.head.kind == HeadKind::kVocabulary;
  PromptResult out;
  out.hidden.resize(rows * static_cast<size_t>(spec.hidden_size));
  if (has_logits) out.logits.resize(rows * static_cast<size_t>(spec.vocab_size));
  const Status status = forward.run(batch, *cache, has_logits ? out.logits.data() : nullptr, out.hidden.data());
  INFO(status.to_string());
  REQUIRE(status.ok());
  return out;
}

void check_encoder(const ModelSource& source, const Golden& golden) {
  for (const auto& backend : all_backends()) {
    INFO(backend->name());
    const auto model = load_model(read_header(source), *backend);
    const ModelSpec& spec = model->spec();
    ForwardPass forward(spec, model->weights(), *backend);
    for (const std::string name : {"p5", "p33", "p150", "p40"}) {
      if (!golden.has(name + ".input_ids")) continue;
      const PromptResult result = run_sequences(forward, spec, {golden.ids(name + ".input_ids")});
      CHECK(max_difference(result.hidden, golden.floats(name + ".hidden").values) <= golden.tolerance());
      if (spec.head.kind == HeadKind::kVocabulary) {
        REQUIRE(golden.has(name + ".logits"));
        check_logits(golden, name, result.logits, spec.vocab_size);
      }
      if (spec.head.kind == HeadKind::kTransform) {
        std::vector<float> pooled(static_cast<size_t>(spec.hidden_size));
        REQUIRE(forward.run_head(result.hidden.data(), 1, pooled.data()).ok());
        CHECK(max_difference(pooled, golden.floats(name + ".pooler").values) <= golden.tolerance());
      }
    }
  }
}

GgufMeta gguf_meta(const std::string& name, uint32_t layers) {
  return {{"general.architecture", name},       {name + ".context_length", 512u},
          {name + ".embedding_length", 64u},    {name + ".block_count", layers},
          {name + ".attention.head_count", 4u}, {name + ".attention.causal", false},
          {name + ".feed_forward_length", 64u}, {name + ".attention.layer_norm_epsilon", 1e-5f}};
}

}  // namespace

TEST_CASE("encoders from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_encoder(source_at(kModels + name), Golden(kModels + name)); }
  }
}

TEST_CASE("T5's encoder from safetensors and from GGUF") {
  const std::string folder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/t5_encoder";
  check_encoder(source_at(folder), Golden(folder));
  check_encoder(source_at(folder + "/model.gguf"), Golden(folder));
}

TEST_CASE("encoders from GGUF") {
  if (!have_data()) return;
  DYNAMIC_SECTION("bert") { check_encoder(source_at(kGguf + "bert.gguf"), Golden(kModels + "bert")); }
  DYNAMIC_SECTION("nomic_bert") {
    GgufMeta meta = gguf_meta("nomic-bert", 3);
    meta["nomic-bert.feed_forward_length"] = 96u;
    meta["nomic-bert.attention.layer_norm_epsilon"] = 1e-12f;
    meta["nomic-bert.rope.freq_base"] = 1000.0f;
    meta["nomic-bert.pooling_type"] = 1u;
    ConvertedFile file(meta);
    file.add_all(kModels + "nomic_bert/model.safetensors",
                 {{"encoder.layers.", "blk."},
                  {"embeddings.word_embeddings", "token_embd"},
                  {"embeddings.token_type_embeddings", "token_types"},
                  {"emb_ln", "token_embd_norm"},
                  {"attn.Wqkv", "attn_qkv"},
                  {"attn.out_proj", "attn_output"},
                  {"mlp.fc11", "ffn_up"},
                  {"mlp.fc12", "ffn_gate"},
                  {"mlp.fc2", "ffn_down"},
                  {"norm1", "attn_output_norm"},
                  {"norm2", "layer_output_norm"}},
                 0.0f);
    CHECK(read_header(file.source()).spec.pooling == Pooling::kMean);
    check_encoder(file.source(), Golden(kModels + "nomic_bert"));
  }
  DYNAMIC_SECTION("modernbert") {
    GgufMeta meta = gguf_meta("modern-bert", 4);
    meta["modern-bert.attention.sliding_window"] = 16u;
    meta["modern-bert.attention.sliding_window_pattern"] = 3u;
    meta["modern-bert.rope.freq_base"] = 160000.0f;
    meta["modern-bert.rope.freq_base_swa"] = 10000.0f;
    meta["modern-bert.rope.scaling.type"] = std::string("none");
    ConvertedFile file(meta);
    file.add_all(kModels + "modernbert/model.safetensors",
                 {{"model.layers.", "blk."},
                  {"model.embeddings.tok_embeddings", "token_embd"},
                  {"model.embeddings.norm", "token_embd_norm"},
                  {"model.final_norm", "output_norm"},
                  {"mlp_norm", "ffn_norm"},
                  {"attn.Wqkv", "attn_qkv"},
                  {"attn.Wo", "attn_output"},
                  {"mlp.Wi", "ffn_up"},
                  {"mlp.Wo", "ffn_down"},
                  {"decoder.bias", ""},
                  {"head.dense.weight", ""},
                  {"head.norm.weight", ""}},
                 0.0f);
    check_encoder(file.source(), Golden(kModels + "modernbert"));
  }
}

// The golden's pooler as the classifier's transform: scores are then a product with what it gives.
TEST_CASE("a classifier from GGUF") {
  if (!have_data()) return;
  constexpr size_t kLabels = 3, kSize = 64;
  GgufMeta meta = gguf_meta("bert", 3);
  meta["bert.context_length"] = 256u;
  meta["bert.feed_forward_length"] = 96u;
  meta["bert.attention.layer_norm_epsilon"] = 1e-12f;
  meta["bert.pooling_type"] = 4u;
  ConvertedFile file(meta);
  file.add_all(kModels + "bert/model.safetensors",
               {{"encoder.layer.", "blk."},
                {"embeddings.word_embeddings", "token_embd"},
                {"embeddings.position_embeddings", "position_embd"},
                {"embeddings.token_type_embeddings", "token_types"},
                {"embeddings.LayerNorm", "token_embd_norm"},
                {"attention.self.query", "attn_q"},
                {"attention.self.key", "attn_k"},
                {"attention.self.value", "attn_v"},
                {"attention.output.dense", "attn_output"},
                {"attention.output.LayerNorm", "attn_output_norm"},
                {"intermediate.dense", "ffn_up"},
                {"output.dense", "ffn_down"},
                {"output.LayerNorm", "layer_output_norm"},
                {"pooler.dense", "cls"}},
               0.0f);
  std::vector<float> matrix(kLabels * kSize);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i * 37 % 101) / 50.0f - 1.0f;
  file.add("cls.output.weight", {kLabels, kSize}, matrix);
  file.add("cls.output.bias", {kLabels}, {0.5f, -0.25f, 0.0f});

  const Golden golden(kModels + "bert");
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(file.source()), *backend);
    REQUIRE(model->spec().head.num_labels == kLabels);
    ForwardPass forward(model->spec(), model->weights(), *backend);
    const PromptResult result = run_sequences(forward, model->spec(), {golden.ids("p33.input_ids")});
    std::vector<float> scores(kLabels);
    REQUIRE(forward.run_head(result.hidden.data(), 1, scores.data()).ok());
    const std::vector<float> pooled = golden.floats("p33.pooler").values;
    for (size_t label = 0; label < kLabels; ++label) {
      double expected = label == 0 ? 0.5 : label == 1 ? -0.25 : 0.0, weight = 0;
      for (size_t i = 0; i < kSize; ++i) {
        const double w = static_cast<double>(matrix[label * kSize + i]);
        expected += w * static_cast<double>(pooled[i]);
        weight += std::abs(w);
      }
      CHECK(std::abs(static_cast<double>(scores[label]) - expected) <= weight * golden.tolerance());
    }
  }
}

// Bit for bit: whoever shares the step, and on however many threads.
TEST_CASE("encoders do not depend on the batch or on threads") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    INFO(name);
    const Golden golden(kModels + name);
    std::vector<std::vector<int32_t>> sequences;
    for (const char* part : {"p33", "p150", "p5"}) sequences.push_back(golden.ids(std::string(part) + ".input_ids"));
    sequences.push_back({7});
    for (const Isa isa : available_isas()) {
      INFO(isa_name(isa));
      std::vector<PromptResult> results;  // of all together, on one and on three threads; then each alone
      for (const int threads : {1, 3}) {
        auto backend = make_cpu_backend({isa, threads});
        REQUIRE(backend.ok());
        const auto model = load_model(read_header(source_at(kModels + name)), **backend);
        ForwardPass forward(model->spec(), model->weights(), **backend);
        results.push_back(run_sequences(forward, model->spec(), sequences));
        PromptResult alone;
        for (const auto& ids : sequences) {
          const PromptResult one = run_sequences(forward, model->spec(), {ids});
          alone.hidden.insert(alone.hidden.end(), one.hidden.begin(), one.hidden.end());
          alone.logits.insert(alone.logits.end(), one.logits.begin(), one.logits.end());
        }
        results.push_back(std::move(alone));
      }
      for (size_t i = 1; i < results.size(); ++i) {
        CHECK(results[i].hidden == results[0].hidden);
        CHECK(results[i].logits == results[0].logits);
      }
    }
  }
}

TEST_CASE("encoders take whole sequences, within their positions, in segments they have") {
  if (!have_data()) return;
  auto backend = make_reference_backend();
  const auto model = load_model(read_header(source_at(kModels + "roberta_mlm")), *backend);
  CHECK(model->spec().max_position_embeddings == 253);  // of 256 rows three lie before the first position's
  ForwardPass forward(model->spec(), model->weights(), *backend);
  auto cache = make_cache(model->spec(), KvDType::kF32);
  const auto run = [&](std::vector<int32_t> ids, int64_t end, std::vector<int32_t> token_types = {}) {
    KvSequence sequence = cache->new_sequence();
    REQUIRE(cache->reserve(sequence, end).ok());
    Batch batch;
    batch.add_sequence(*cache, sequence, ids, end, 0);
    batch.token_types = std::move(token_types);
    std::vector<float> hidden(static_cast<size_t>(end) * 64);
    const Status status = forward.run(batch, *cache, nullptr, hidden.data());
    return std::pair(status, hidden);
  };
  CHECK(run(std::vector<int32_t>(253, 9), 253).first.ok());
  CHECK(run(std::vector<int32_t>(254, 9), 254).first.place() == "positions");
  CHECK(run({9, 9}, 2, {0, 1}).first.place() == "token_types");
  CHECK(run({9, 9}, 2, {0}).first.place() == "token_types");
  CHECK(run({9, 9}, 2, {0, 0}).second == run({9, 9}, 2).second);

  KvSequence sequence = cache->new_sequence();
  const std::vector<int32_t> ids = {4, 5, 6};
  REQUIRE(cache->reserve(sequence, 2).ok());
  REQUIRE(cache->commit(sequence, ids, 2).ok());
  REQUIRE(cache->reserve(sequence, 3).ok());
  Batch batch;
  batch.add_sequence(*cache, sequence, ids, 3, 2);
  std::vector<float> hidden(64);
  CHECK(forward.run(batch, *cache, nullptr, hidden.data()).place() == "positions");
}

// RoBERTa's padding tokens have a row of their own and are not counted: what stands behind them has the rows it would
// have without them.
TEST_CASE("padding tokens of RoBERTa are not counted as positions") {
  if (!have_data()) return;
  auto backend = make_reference_backend();
  const auto model = load_model(read_header(source_at(kModels + "roberta_mlm")), *backend);
  ForwardPass forward(model->spec(), model->weights(), *backend);
  const int32_t padding = model->spec().position_padding_id;
  REQUIRE(padding == 2);
  const std::vector<int32_t> ids = {padding, 17, padding, 40};
  std::vector<float> seen;
  forward.set_layer_observer([&](int32_t layer, const float* x, int64_t) {
    if (layer == 0) seen.assign(x, x + 4 * 64);
  });
  run_sequences(forward, model->spec(), {ids});
  const std::vector<float> mixed = seen;
  run_sequences(forward, model->spec(), {{17, 40, 9, 9}});
  CHECK(std::equal(mixed.begin() + 64, mixed.begin() + 128, seen.begin()));        // 17 is the first that counts
  CHECK(std::equal(mixed.begin() + 192, mixed.begin() + 256, seen.begin() + 64));  // 40 the second
  CHECK(std::equal(mixed.begin(), mixed.begin() + 64, mixed.begin() + 128));
}
