// Models with recurrent layers: transformers' logits, and one arithmetic for any cut, with states that go on.

#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::string kGguf = kData + "/goldens/gguf/";

const std::vector<std::string> kNames = {
    "lfm2",         "lfm2_moe",         "mamba",      "mamba2",      "falcon_h1",
    "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid", "granitemoehybrid",
    "nemotron_h",   "kimi_linear",      "minimax"};

bool have_data() { return have_golden(kModels + "lfm2"); }

}  // namespace

TEST_CASE("recurrent models from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("recurrent models from GGUF") {
  if (!have_data()) return;
  for (const std::string name : {"lfm2", "lfm2_moe", "mamba", "mamba2", "falcon_h1", "nemotron_h"}) {
    DYNAMIC_SECTION(name) { check_source(source_at(kGguf + name + ".gguf"), Golden(kModels + name), kAllCases); }
  }
}

// GGUF has no place for the rotation of this model, whose kin do not rotate. Its converter did not know the layer for one
// with attention: there are no KV heads in the metadata, and rows of q and k are in the order of halves.
TEST_CASE("granite hybrids from GGUF with the rotation of the config") {
  if (!have_data()) return;
  const std::string name = "granitemoehybrid";
  const ModelHeader original = read_header(source_at(kModels + name));
  for (const auto& backend : all_backends()) {
    ModelHeader header = read_header(source_at(kGguf + name + ".gguf"));
    for (size_t i = 0; i < header.spec.layers.size(); ++i) {
      auto* attention = std::get_if<GqaAttention>(&header.spec.layers[i].attention);
      if (attention == nullptr) continue;
      CHECK(attention->rope == RopeSpec());
      attention->rope = std::get<GqaAttention>(original.spec.layers[i].attention).rope;
    }
    const auto model = load_model(std::move(header), *backend);
    check_case(*model, *backend, Golden(kModels + name), "p33");
  }
}

TEST_CASE("recurrent models do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

// The others' hidden states are recorded elsewhere in their layers.
TEST_CASE("layer outputs of recurrent models") {
  if (!have_data()) return;
  for (const std::string name : {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "lfm2_moe", "olmo_hybrid",
                                 "granitemoehybrid", "nemotron_h", "kimi_linear", "minimax"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("recurrent models in the older config style") {
  if (!have_data()) return;
  for (const std::string& name : kNames) check_older_config(kModels + name);
}

TEST_CASE("a key that no list of a recurrent family names is refused by name") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    INFO(name);
    ModelSource source = source_with_config(kModels + name, "config.json");
    source.config_json.insert(source.config_json.find('{') + 1, "\"attention_twist\": 2,");
    const auto header = ModelHeader::read(source);
    REQUIRE_FALSE(header.ok());
    CHECK(header.status().code() == StatusCode::kUnsupported);
    CHECK(header.status().place().find("/attention_twist") != std::string::npos);
  }
}

namespace {

void check_same_spec(const std::string& name, const ConfigChange& change) {
  INFO(name);
  const auto changed = read_changed(kModels + name, change);
  INFO(changed.status().to_string());
  REQUIRE(changed.ok());
  CHECK(changed->spec == read_header(source_at(kModels + name)).spec);
}

void check_refused(const std::string& name, StatusCode code, const std::string& place, const ConfigChange& change) {
  check_change_refused(kModels + name, code, place, change);
}

}  // namespace

// The makers' files and those that transformers writes again say the same in other words.
TEST_CASE("recurrent models in the style of their makers") {
  if (!have_data()) return;
  check_same_spec("kimi_linear", [](nlohmann::json& config) {
    for (const char* key :
         {"layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"}) {
      config.erase(key);
    }
    config["linear_attn_config"] = {{"full_attn_layers", {2}},
                                    {"kda_layers", {1, 3}},
                                    {"head_dim", 16},
                                    {"num_heads", 4},
                                    {"short_conv_kernel_size", 4}};
    config["first_k_dense_replace"] = 1;
    config["mla_use_nope"] = true;
    config["moe_router_activation_func"] = "sigmoid";
    config["rope_theta"] = 10000.0;
  });
  check_same_spec("nemotron_h", [](nlohmann::json& config) {
    config.erase("layers_block_type");
    config["hybrid_override_pattern"] = "ME*-M";
    config["num_hidden_layers"] = 5;
  });
  check_same_spec("granitemoehybrid", [](nlohmann::json& config) {
    config.erase("layer_types");
    config["layers_block_type"] = {"mamba", "attention", "mamba"};
  });
}

TEST_CASE("attention of hybrids that say so does not rotate") {
  if (!have_data()) return;
  const auto granite = read_changed(kModels + "granitemoehybrid",
                                    [](nlohmann::json& config) { config["position_embedding_type"] = "nope"; });
  REQUIRE(granite.ok());
  CHECK(std::get<GqaAttention>(granite->spec.layers[1].attention).rope == RopeSpec());
  const auto olmo = read_changed(kModels + "olmo_hybrid", [](nlohmann::json& config) {
    config["rope_parameters"] = {{"rope_theta", nullptr}};
  });
  REQUIRE(olmo.ok());
  CHECK(std::get<GqaAttention>(olmo->spec.layers[2].attention).rope == RopeSpec());
}

TEST_CASE("values of hybrids that are not built, or contradict each other, are refused by name") {
  if (!have_data()) return;
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [key, value](nlohmann::json& config) { config[key] = value; };
  };
  check_refused("kimi_linear", StatusCode::kUnsupported, "/mla_use_nope", set("mla_use_nope", false));
  check_refused("kimi_linear", StatusCode::kMalformed, "/full_attn_layers", [](nlohmann::json& config) {
    config.erase("layer_types");
    config["linear_attn_config"] = {{"full_attn_layers", {2}}, {"kda_layers", {1, 2}}};
  });
  check_refused("kimi_linear", StatusCode::kUnsupported, "/window", [](nlohmann::json& config) {
    config["linear_attn_config"] = {{"window", 3}};
  });
  check_refused("nemotron_h", StatusCode::kUnsupported, "/moe_latent_size", set("moe_latent_size", 32));
  check_refused("nemotron_h", StatusCode::kUnsupported, "/num_hidden_layers", set("num_hidden_layers", 4));
  check_refused("nemotron_h", StatusCode::kUnsupported, "/layers_block_type",
                set("layers_block_type", {"linear_attention", "moe", "full_attention", "mlp", "lstm"}));
  check_refused("minimax", StatusCode::kUnsupported, "/sliding_window", set("sliding_window", 64));
  check_refused("granitemoehybrid", StatusCode::kUnsupported, "/mamba_d_head", set("mamba_d_head", 32));
  check_refused("granitemoehybrid", StatusCode::kUnsupported, "/position_embedding_type",
                set("position_embedding_type", "alibi"));
  check_refused("lfm2_moe", StatusCode::kMalformed, "/num_experts_per_tok", set("num_experts_per_tok", 9));
  // A tensor of the convolution that is no longer as the layer needs it.
  check_refused("olmo_hybrid", StatusCode::kMalformed, "linear_attn.q_conv1d.weight", set("linear_key_head_dim", 24));
}

// Names without a suffix, as A_log and D are, too.
TEST_CASE("tensors that do not fit a hybrid's layers are named") {
  if (!have_data()) return;
  for (const char* name : {"granitemoehybrid", "kimi_linear", "qwen3_5_moe_text"}) {
    INFO(name);
    const auto changed = read_changed(kModels + name, [](nlohmann::json& config) { config.erase("layer_types"); });
    REQUIRE_FALSE(changed.ok());
    INFO(changed.status().to_string());
    CHECK(changed.status().place().find("model.layers.") != std::string::npos);
  }
}
