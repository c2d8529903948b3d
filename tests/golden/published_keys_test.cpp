// Keys of published configs that the reference does not read, because they say what its class does anyhow: they are taken where
// they say that, and refused by name where they say something else.
#include "golden/mutation_names.h"
#include "model/families/family.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";

nlohmann::json config_of(const std::string& name) {
  return nlohmann::json::parse(read_file(kModels + name + "/config.json"));
}

Result<ImportedModel> import(const std::string& name, const nlohmann::json& config) {
  auto weights = SafetensorsFile::open_path(kModels + name + "/model.safetensors");
  REQUIRE(weights.ok());
  return import_config(config, **weights);
}

void check_same(const std::string& name, const nlohmann::json& config) {
  const auto plain = import(name, config_of(name)), other = import(name, config);
  INFO(name << ": " << other.status().to_string());
  REQUIRE(other.ok());
  CHECK(other->spec == plain->spec);
}

struct PublishedKey {
  const char *model, *key;
  nlohmann::json taken, refused;  // null: every value is taken
};

}  // namespace

TEST_CASE("keys of published configs that say what a class does are taken, and refused where they say more") {
  if (!have_golden(kModels + "llama")) return;
  const auto none = nlohmann::json::array();
  const PublishedKey kKeys[] = {
      {"qwen3_moe", "qkv_bias", false, true},
      {"qwen3_moe", "use_qk_norm", true, false},
      {"qwen3_moe", "shared_expert_intermediate_size", 0, 64},
      {"qwen3_5_text", "mlp_only_layers", none, {1}},
      {"qwen3_5_text", "output_gate_type", "swish", "sigmoid"},
      {"cohere2", "use_embedding_sharing", true, false},
      {"cohere2", "use_parallel_embedding", true, nullptr},
      {"cohere2", "layer_switch", 4, nullptr},
      {"cohere2", "order_of_interleaved_layers", "local_attn_first", nullptr},
      {"phi3", "lm_head_bias", false, true},
      {"phi3", "full_attn_mod", 1, 2},
      {"phi3", "interpolate_factor", 1, 2},
      {"stablelm", "rotary_scaling_factor", 1.0, 2.0},
      {"starcoder2", "scale_attn_weights", true, false},
      {"starcoder2", "layer_norm_epsilon", 1e-5, 1e-6},
      {"starcoder2", "attention_softmax_in_fp32", true, nullptr},
      {"glm_moe_dsa", "num_experts", 8, 4},
      {"glm_moe_dsa", "moe_router_dtype", "float32", "bfloat16"},
      {"deepseek_v3", "model_type", "kimi_k2", "kimi_k9"},
      {"falcon_h1", "mlp_expansion_factor", 8, nullptr},
      {"gemma3n_text", "query_pre_attn_scalar", 256, nullptr},
  };
  for (const PublishedKey& item : kKeys) {
    nlohmann::json config = config_of(item.model);
    config[item.key] = item.taken;
    check_same(item.model, config);
    if (item.refused.is_null()) continue;
    config[item.key] = item.refused;
    const auto other = import(item.model, config);
    INFO(item.model << ": " << item.key << ": " << other.status().to_string());
    REQUIRE_FALSE(other.ok());
    CHECK(says(other.status().place(), item.key));
  }
}

TEST_CASE("sparse attention by its first name is the same") {
  if (!have_golden(kModels + "glm_moe_dsa")) return;
  nlohmann::json config = config_of("glm_moe_dsa");
  for (auto& type : config["layer_types"]) type = "deepseek_sparse_attention";
  check_same("glm_moe_dsa", config);
}

TEST_CASE("the makers' config of MiMo-V2-Flash is the same model, and no key of it may contradict the others") {
  if (!have_golden(kModels + "mimo_v2_flash")) return;
  nlohmann::json config = config_of("mimo_v2_flash");
  for (const char* key : {"layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps"}) config.erase(key);
  config.update({{"hybrid_layer_pattern", {0, 1, 1}},
                 {"moe_layer_freq", {0, 1, 1}},
                 {"rope_theta", 5000000},
                 {"swa_rope_theta", 10000},
                 {"partial_rotary_factor", 0.334},
                 {"sliding_window", 31},
                 {"sliding_window_size", 31},
                 {"attention_chunk_size", 31},
                 {"swa_num_attention_heads", 4},
                 {"swa_num_key_value_heads", 4},
                 {"swa_head_dim", 24},
                 {"swa_v_head_dim", 16},
                 {"n_shared_experts", nullptr},
                 {"scoring_func", "sigmoid"},
                 {"topk_method", "noaux_tc"},
                 {"layernorm_epsilon", 1e-5},
                 {"add_swa_attention_sink_bias", true},
                 {"add_full_attention_sink_bias", false}});
  check_same("mimo_v2_flash", config);
  const std::pair<const char*, nlohmann::json> kOthers[] = {{"hybrid_layer_pattern", {0, 1}},
                                                            {"hybrid_layer_pattern", {0, 1, 2}},
                                                            {"moe_layer_freq", {0, 1, 1, 1}},
                                                            {"rope_theta", 10000},
                                                            {"swa_rope_theta", 5000000},
                                                            {"partial_rotary_factor", 0.5},
                                                            {"sliding_window", 32},
                                                            {"attention_chunk_size", 64},
                                                            {"swa_num_attention_heads", 2},
                                                            {"swa_num_key_value_heads", 2},
                                                            {"swa_head_dim", 16},
                                                            {"swa_v_head_dim", 24},
                                                            {"n_shared_experts", 1},
                                                            {"scoring_func", "softmax"},
                                                            {"topk_method", "greedy"},
                                                            {"layernorm_epsilon", 1e-6},
                                                            {"rope_scaling", {{"type", "linear"}}},
                                                            {"add_swa_attention_sink_bias", false},
                                                            {"add_full_attention_sink_bias", true}};
  for (const auto& [key, value] : kOthers) {
    nlohmann::json other = config;
    other[key] = value;
    const auto model = import("mimo_v2_flash", other);
    INFO(key << ": " << value.dump() << ": " << model.status().to_string());
    REQUIRE_FALSE(model.ok());
    CHECK(says(model.status().place(), key));
  }
}
