// DeepSeek-V4, whose attention sees rows that runs of tokens are compressed into, against transformers' float32 logits on
// every backend of this machine, from HEADRACE_TEST_DATA.

#include "golden/golden_checks.h"
#include "model/families/family.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kFolder = kData + "/goldens/models/deepseek_v4";

bool have_data() { return have_golden(kFolder); }

}  // namespace

TEST_CASE("deepseek_v4 from safetensors") {
  if (!have_data()) return;
  check_source(source_at(kFolder), Golden(kFolder), kAllCases);
}

TEST_CASE("deepseek_v4 does not depend on the cut") {
  if (!have_data()) return;
  check_cuts(kFolder, Golden(kFolder).ids("p150.input_ids"));
}

TEST_CASE("deepseek_v4 goes on from cached and from saved values") {
  if (!have_data()) return;
  check_cached_prefix(kFolder, Golden(kFolder).ids("p150.input_ids"));
}

// Cuts inside and at the ends of runs (of 4 and 16 tokens), of the window of 16 and between snapshots (every 32).
TEST_CASE("deepseek_v4 goes on from a rewound and from a forked sequence") {
  if (!have_data()) return;
  const std::vector<int32_t> ids = Golden(kFolder).ids("p150.input_ids");
  const auto length = static_cast<int64_t>(ids.size());
  for (const auto& backend : all_backends()) {
    if (backend->name() == "reference") continue;
    INFO(backend->name());
    const auto model = load_model(read_header(source_at(kFolder)), *backend);
    const ModelSpec& spec = model->spec();
    ForwardPass forward(spec, model->weights(), *backend);
    for (const KvDType dtype : {KvDType::kF32, KvDType::kQ8}) {
      auto cache = make_cache(spec, dtype);
      const auto width = static_cast<size_t>(spec.vocab_size);
      const auto run_to = [&](KvSequence& sequence, const std::vector<int32_t>& tokens, int64_t end) {
        REQUIRE(cache->reserve(sequence, end).ok());
        Batch batch;
        add_rows(batch, *cache, sequence, tokens, end, false);
        std::vector<float> logits(width);
        REQUIRE(forward.run(batch, *cache, logits.data()).ok());
        REQUIRE(cache->commit(sequence, tokens, end).ok());
        return logits;
      };
      KvSequence sequence = cache->new_sequence("one");
      const std::vector<float> expected = run_to(sequence, ids, length);
      for (const int64_t cut : {149, 128, 127, 97, 64, 50, 31, 3}) {
        INFO("cut at " << cut);
        cache->rewind(sequence, cut);
        REQUIRE(sequence.num_tokens() <= cut);
        // Other tokens in between leave nothing behind.
        std::vector<int32_t> others(ids.begin(), ids.begin() + cut);
        for (int i = 0; i < 21; ++i) others.push_back(7 + i);
        KvSequence fork = cache->fork(sequence);
        run_to(fork, others, static_cast<int64_t>(others.size()));
        CHECK(run_to(sequence, ids, length) == expected);
        cache->rewind(fork, cut);
        CHECK(run_to(fork, ids, length) == expected);
      }
      REQUIRE(cache->check_invariants().ok());
    }
  }
}

// Kinds of layers by number, and more of them than there are layers: others predict further ahead.
TEST_CASE("deepseek_v4 in the style of its makers") {
  if (!have_data()) return;
  const auto weights = SafetensorsFile::open_path(kFolder + "/model.safetensors");
  REQUIRE(weights.ok());
  nlohmann::json named = nlohmann::json::parse(read_file(kFolder + "/config.json")), numbered = named;
  named["layer_types"][0] = "sliding_attention";
  named["compress_rates"]["heavily_compressed_attention"] = 128;  // what the numbers stand for
  for (const char* key :
       {"compress_rates", "layer_types", "mlp_layer_types", "partial_rotary_factor", "rope_parameters"}) {
    numbered.erase(key);
  }
  numbered["compress_ratios"] = {0, 4, 128, 4, 0};
  numbered["num_hash_layers"] = 2;
  numbered["topk_method"] = "noaux_tc";
  const auto one = read_config(named, **weights), other = read_config(numbered, **weights);
  INFO(one.status().to_string() << other.status().to_string());
  REQUIRE((one.ok() && other.ok()));
  CHECK(one->spec == other->spec);
  CHECK(spec_to_json(one->spec) == spec_to_json(other->spec));

  // Of layers with runs alone, and without changing how long cosines and sines are.
  numbered["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const auto scaled = read_config(numbered, **weights);
  REQUIRE(scaled.ok());
  const auto rope = [&](size_t layer) {
    return std::get<CompressedAttention>(scaled->spec.layers[layer].attention).rope;
  };
  CHECK(rope(0) == std::get<CompressedAttention>(one->spec.layers[0].attention).rope);
  CHECK(rope(1).type == "yarn");
  CHECK(rope(1).attention_factor == 1.0f);
  numbered["compress_ratios"] = {0, 8, 128, 4};
  CHECK(read_config(numbered, **weights).status().place().find("/compress_ratios") != std::string::npos);
}

TEST_CASE("keys of deepseek_v4 that no list names, or that say something else, are refused by name") {
  if (!have_data()) return;
  const auto check = [](const std::string& key, const nlohmann::json& value, StatusCode code,
                        const std::string& place) {
    const auto header =
        read_changed(kFolder, [&](nlohmann::json& config) { config[nlohmann::json::json_pointer(key)] = value; });
    INFO(key << " " << value.dump() << ": " << header.status().to_string());
    REQUIRE_FALSE(header.ok());
    CHECK(header.status().code() == code);
    CHECK(header.status().place().find(place) != std::string::npos);
  };
  using enum StatusCode;
  check("/attention_twist", 2, kUnsupported, "/attention_twist");
  check("/compress_rates/lightly_compressed_attention", 2, kUnsupported, "/lightly_compressed_attention");
  check("/rope_parameters/other", nlohmann::json::object(), kUnsupported, "/other");
  check("/attention_bias", true, kUnsupported, "/attention_bias");
  check("/mlp_bias", true, kUnsupported, "/mlp_bias");
  check("/num_key_value_heads", 2, kUnsupported, "/num_key_value_heads");
  check("/norm_topk_prob", false, kUnsupported, "/norm_topk_prob");
  check("/n_shared_experts", 2, kUnsupported, "/n_shared_experts");
  check("/scoring_func", "softmax", kUnsupported, "/scoring_func");
  check("/hidden_act", "gelu", kUnsupported, "/hidden_act");
  check("/swiglu_limit", 0, kMalformed, "/swiglu_limit");
  check("/qk_rope_head_dim", 16, kUnsupported, "/qk_rope_head_dim");
  check("/layer_types/0", "full_attention", kUnsupported, "/layer_types");
  check("/mlp_layer_types/0", "dense", kUnsupported, "/mlp_layer_types");
  check("/layer_types", {"sliding_attention"}, kMalformed, "/layer_types");
  check("/hc_mult", 17, kMalformed, "/hc_mult");
  check("/hc_mult", 3, kMalformed, "hc_");
  check("/index_head_dim", 4, kMalformed, "head_dim");
  check("/o_groups", 3, kMalformed, "/o_groups");
  check("/num_experts_per_tok", 3, kMalformed, "tid2eid");
  // A compressor that nothing asks for is a tensor too many, and a kind of layer without its tensors one too few.
  check("/layer_types/0", "sliding_attention", kUnsupported, "layers.0.attn.compressor");
  check("/layer_types/0", "compressed_sparse_attention", kMalformed, "layers.0.attn.compressor");
  check("/mlp_layer_types/0", "moe", kNotFound, "layers.0.ffn.gate.");
}

// Where a window and the runs hold every position in sight, chosen or not, nothing is left of the choice.
TEST_CASE("an indexer that chooses every run leaves attention as it is") {
  if (!have_data()) return;
  const std::vector<int32_t> ids = Golden(kFolder).ids("p33.input_ids");  // 8 runs at most, as many as are chosen
  for (const auto& backend : all_backends()) {
    INFO(backend->name());
    std::vector<PromptResult> results;
    for (const bool chooses : {true, false}) {
      ModelHeader header = read_header(source_at(kFolder));
      for (LayerSpec& layer : header.spec.layers) {
        auto& attention = std::get<CompressedAttention>(layer.attention);
        if (attention.indexer && !chooses) attention.indexer->top_k = 100;
      }
      const auto model = load_model(std::move(header), *backend);
      ForwardPass forward(model->spec(), model->weights(), *backend);
      auto cache = make_cache(model->spec(), KvDType::kF32);
      results.push_back(run_prompt(forward, model->spec(), *cache, ids));
    }
    CHECK(max_difference(results[0].logits, results[1].logits) == 0.0);
  }
}
