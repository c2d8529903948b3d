// Tiny models with sparse attention against transformers' float32 logits, on every backend of this machine, from
// HEADRACE_TEST_DATA.
#include "golden/converted_file.h"
#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";

const std::vector<std::string> kNames = {"deepseek_v32", "glm_moe_dsa"};

bool have_data() { return have_golden(kModels + "deepseek_v32"); }

// The status of a folder whose config has one text replaced by another.
Status read_changed(const std::string& name, const std::string& from, const std::string& to) {
  ModelSource source = source_with_config(kModels + name, "config.json");
  const size_t at = source.config_json.find(from);
  REQUIRE(at != std::string::npos);
  source.config_json.replace(at, from.size(), to);
  return ModelHeader::read(source).status();
}

}  // namespace

TEST_CASE("sparse models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("sparse models in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_older_config(kModels + name); }
  }
}

TEST_CASE("layer outputs of sparse models") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("sparse models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

TEST_CASE("sparse models go on from cached and from saved values") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cached_prefix(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// Where every row sees all positions, nothing is left of the indexer: as many are chosen as there are.
TEST_CASE("an indexer that chooses every position leaves attention as it is") {
  if (!have_data()) return;
  const Golden golden(kModels + "deepseek_v32");
  for (const auto& backend : all_backends()) {
    INFO(backend->name());
    ModelHeader sparse_header = read_header(source_at(kModels + "deepseek_v32"));
    for (LayerSpec& layer : sparse_header.spec.layers) std::get<SparseLatentAttention>(layer.attention).top_k = 512;
    const auto model = load_model(std::move(sparse_header), *backend);
    const std::vector<int32_t> ids = golden.ids("p33.input_ids");
    ForwardPass forward(model->spec(), model->weights(), *backend);
    auto cache = make_cache(model->spec(), KvDType::kF32);
    const PromptResult sparse = run_prompt(forward, model->spec(), *cache, ids);

    ModelSpec dense_spec = model->spec();
    ModelHeader dense_header = read_header(source_at(kModels + "deepseek_v32"));
    for (LayerSpec& layer : dense_header.spec.layers) {
      layer.attention = std::get<SparseLatentAttention>(layer.attention).latent;
    }
    const auto dense_model = load_model(std::move(dense_header), *backend);
    ForwardPass dense_forward(dense_model->spec(), dense_model->weights(), *backend);
    auto dense_cache = make_cache(dense_model->spec(), KvDType::kF32);
    const PromptResult dense = run_prompt(dense_forward, dense_model->spec(), *dense_cache, ids);
    // Ranks are positions then, and the arithmetic is one.
    CHECK(max_difference(sparse.logits, dense.logits) == 0.0);
  }
}

namespace {

constexpr uint32_t kExperts = 8, kHeads = 4, kNope = 16, kRope = 8, kRank = 24, kValue = 16;

GgufMeta sparse_meta(const std::string& architecture, uint32_t layers) {
  GgufMeta meta = {{"general.architecture", architecture}};
  const auto put = [&](const std::string& key, GgufMetaValue value) {
    meta[architecture + "." + key] = std::move(value);
  };
  put("block_count", layers);
  put("context_length", 512u);
  put("vocab_size", 320u);
  put("embedding_length", 64u);
  put("feed_forward_length", 112u);
  put("attention.head_count", kHeads);
  put("attention.head_count_kv", 1u);
  put("attention.layer_norm_rms_epsilon", 1e-5f);
  put("attention.key_length", kRank + kRope);
  put("attention.value_length", kRank);
  put("attention.key_length_mla", kNope + kRope);
  put("attention.value_length_mla", kValue);
  put("attention.q_lora_rank", 32u);
  put("attention.kv_lora_rank", kRank);
  put("attention.indexer.head_count", 16u);
  put("attention.indexer.key_length", 16u);
  put("attention.indexer.top_k", 16u);
  put("rope.dimension_count", kRope);
  put("rope.freq_base", 10000.0f);
  put("leading_dense_block_count", 1u);
  put("expert_count", kExperts);
  put("expert_used_count", 2u);
  put("expert_feed_forward_length", 32u);
  put("expert_shared_count", 1u);
  put("expert_weights_scale", 2.5f);
  put("expert_weights_norm", true);
  put("expert_gating_func", 2u);
  return meta;
}

std::vector<float> read_floats(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* tensor = file.find(name);
  REQUIRE(tensor != nullptr);
  std::vector<float> out(tensor->bytes / 4);
  REQUIRE(file.read(*tensor, 0, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

// kv_b_proj in its two parts, the keys' transposed, as converters write them.
void add_latent_parts(ConvertedFile& out, const SafetensorsFile& file, uint32_t layer) {
  const std::vector<float> both = read_floats(file, fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer));
  std::vector<float> keys, values;
  for (uint32_t h = 0; h < kHeads; ++h) {
    const float* head = both.data() + h * (kNope + kValue) * kRank;
    for (uint32_t r = 0; r < kRank; ++r) {
      for (uint32_t d = 0; d < kNope; ++d) keys.push_back(head[d * kRank + r]);
    }
    values.insert(values.end(), head + kNope * kRank, head + (kNope + kValue) * kRank);
  }
  out.add(fmt::format("blk.{}.attn_k_b.weight", layer), {kHeads, kRank, kNope}, std::move(keys));
  out.add(fmt::format("blk.{}.attn_v_b.weight", layer), {kHeads, kValue, kRank}, std::move(values));
}

void add_experts(ConvertedFile& out, const SafetensorsFile& file, uint32_t layer, const std::string& part,
                 std::vector<uint64_t> shape) {
  std::vector<float> all;
  for (uint32_t e = 0; e < kExperts; ++e) {
    const std::vector<float> one =
        read_floats(file, fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", layer, e, part));
    all.insert(all.end(), one.begin(), one.end());
  }
  shape.insert(shape.begin(), kExperts);
  out.add(fmt::format("blk.{}.ffn_{}_exps.weight", layer, part), std::move(shape), std::move(all));
}

// A model's tensors as converters name them.
ConvertedFile converted(const std::string& name, const GgufMeta& meta, uint32_t layers) {
  const std::string path = kModels + name + "/model.safetensors";
  auto file = SafetensorsFile::open_path(path);
  REQUIRE(file.ok());
  ConvertedFile out(meta);
  out.add_all(path,
              {{"kv_b_proj.weight", "*"},
               {"mlp.experts", "*"},
               {"model.layers.", "blk."},
               {"model.embed_tokens", "token_embd"},
               {"model.norm", "output_norm"},
               {"lm_head", "output"},
               {"input_layernorm", "attn_norm"},
               {"post_attention_layernorm", "ffn_norm"},
               {"self_attn.q_a_proj", "attn_q_a"},
               {"self_attn.q_a_layernorm", "attn_q_a_norm"},
               {"self_attn.q_b_proj", "attn_q_b"},
               {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
               {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
               {"self_attn.o_proj", "attn_output"},
               {"self_attn.indexer.wq_b", "indexer.attn_q_b"},
               {"self_attn.indexer.wk", "indexer.attn_k"},
               {"self_attn.indexer.weights_proj", "indexer.proj"},
               {"self_attn.indexer.k_norm", "indexer.k_norm"},
               {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
               {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
               {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
               {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
               {"mlp.gate.", "ffn_gate_inp."},
               {"mlp.gate_proj", "ffn_gate"},
               {"mlp.up_proj", "ffn_up"},
               {"mlp.down_proj", "ffn_down"}},
              0.0f);
  for (uint32_t layer = 0; layer < layers; ++layer) add_latent_parts(out, **file, layer);
  for (uint32_t layer = 1; layer < layers; ++layer) {
    add_experts(out, **file, layer, "gate", {32, 64});
    add_experts(out, **file, layer, "up", {32, 64});
    add_experts(out, **file, layer, "down", {64, 32});
  }
  return out;
}

}  // namespace

TEST_CASE("glm_moe_dsa from GGUF, with a layer past its last") {
  if (!have_data()) return;
  GgufMeta meta = sparse_meta("glm-dsa", 4);
  meta["glm-dsa.nextn_predict_layers"] = 1u;
  meta["glm-dsa.attention.indexer.types"] = std::vector<bool>{true, true, false};
  ConvertedFile file = converted("glm_moe_dsa", meta, 3);
  file.add("blk.3.nextn.eh_proj.weight", {2, 2}, std::vector<float>(4));
  check_source(file.source(), Golden(kModels + "glm_moe_dsa"), kAllCases);
}

TEST_CASE("deepseek_v32 from GGUF") {
  if (!have_data()) return;
  GgufMeta meta = sparse_meta("deepseek32", 2);
  meta["deepseek32.expert_group_count"] = 4u;
  meta["deepseek32.expert_group_used_count"] = 2u;
  meta["deepseek32.rope.scaling.type"] = std::string("yarn");
  meta["deepseek32.rope.scaling.factor"] = 8.0f;
  meta["deepseek32.rope.scaling.original_context_length"] = 64u;
  meta["deepseek32.rope.scaling.yarn_log_multiplier"] = 0.1f;
  check_source(converted("deepseek_v32", meta, 2).source(), Golden(kModels + "deepseek_v32"), kAllCases);
}

TEST_CASE("keys of sparse attention that no list names, or that say something else, are refused by name") {
  if (!have_data()) return;
  const auto check = [](const std::string& name, const std::string& from, const std::string& to, StatusCode code,
                        const std::string& place) {
    const Status status = read_changed(name, from, to);
    INFO(name << " " << to << ": " << status.to_string());
    CHECK(status.code() == code);
    CHECK(status.place().find(place) != std::string::npos);
  };
  for (const std::string& name : kNames) {
    check(name, "{", "{\"attention_twist\": 2,", StatusCode::kUnsupported, "/attention_twist");
    check(name, "\"index_topk\": 16", "\"index_topk\": 0", StatusCode::kMalformed, "/index_topk");
    check(name, "\"index_head_dim\": 16", "\"index_head_dim\": 4", StatusCode::kMalformed, "/index_head_dim");
    check(name, "\"index_n_heads\": 16", "\"index_n_heads\": 8", StatusCode::kMalformed, "indexer.wq_b.weight");
    check(name, "\"indexed_attention\"", "\"full_attention\"", StatusCode::kUnsupported, "/layer_types");
  }
  check("deepseek_v32", "{", "{\"indexer_rope_interleave\": true,", StatusCode::kUnsupported,
        "/indexer_rope_interleave");
  check("deepseek_v32", "{", "{\"index_topk_freq\": 2,", StatusCode::kUnsupported, "/index_topk_freq");
  check("glm_moe_dsa", "\"shared\"", "\"lent\"", StatusCode::kUnsupported, "/indexer_types");
  check("glm_moe_dsa", "\"full\",", "", StatusCode::kMalformed, "/indexer_types");
  check("glm_moe_dsa", "\"full\",", "\"shared\",", StatusCode::kMalformed, "layers.0.attention.indexer");
  // A layer's indexer that nothing asks for is a tensor too many.
  check("glm_moe_dsa", "\"full\",\n    \"full\",", "\"full\",\n    \"shared\",", StatusCode::kUnsupported, "indexer");
}

TEST_CASE("the layers that share an indexer follow from a pattern or a period") {
  if (!have_data()) return;
  const auto own = [](const std::string& to) {
    ModelSource source = source_with_config(kModels + "glm_moe_dsa", "config.json");
    const std::string from = "\"indexer_types\": [\n    \"full\",\n    \"full\",\n    \"shared\"\n  ]";
    const size_t at = source.config_json.find(from);
    REQUIRE(at != std::string::npos);
    source.config_json.replace(at, from.size(), to);
    std::string out;
    for (const LayerSpec& layer : read_header(source).spec.layers) {
      out += std::get<SparseLatentAttention>(layer.attention).indexer ? 'F' : 'S';
    }
    return out;
  };
  CHECK(own("\"index_topk_pattern\": \"FFS\"") == "FFS");
  CHECK(own("\"index_topk_pattern\": [\"full\", \"full\", \"shared\"]") == "FFS");
  CHECK(own("\"index_topk_freq\": 4, \"index_skip_topk_offset\": 2") == "FFS");
}
