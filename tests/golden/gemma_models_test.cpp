// Tiny Gemma 3n and 4 against transformers' float32 logits, on every backend of this machine, from HEADRACE_TEST_DATA:
// inputs of each layer's own, shared keys and values, several streams, experts beside a feed-forward.
#include <tuple>

#include "golden/converted_file.h"
#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";

const std::vector<std::string> kNames = {"gemma3n_text", "gemma4_text", "gemma4_moe_text"};

bool have_data() { return have_golden(kModels + "gemma4_text"); }

// The source of a folder whose config has one text replaced by another.
ModelSource changed(const std::string& name, const std::string& from, const std::string& to) {
  ModelSource source = source_with_config(kModels + name, "config.json");
  const size_t at = source.config_json.find(from);
  INFO(from);
  REQUIRE(at != std::string::npos);
  source.config_json.replace(at, from.size(), to);
  return source;
}

}  // namespace

TEST_CASE("Gemma 3n and 4 from safetensors") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_source(source_at(kModels + name), Golden(kModels + name), kAllCases); }
  }
}

TEST_CASE("layer outputs of Gemma 4") {
  if (!have_data()) return;
  for (const std::string name : {"gemma4_text", "gemma4_moe_text"}) {
    DYNAMIC_SECTION(name) { check_layers(kModels + name, Golden(kModels + name)); }
  }
}

TEST_CASE("Gemma 3n and 4 do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cuts(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

TEST_CASE("Gemma 3n and 4 go on from cached and from saved values") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) { check_cached_prefix(kModels + name, Golden(kModels + name).ids("p150.input_ids")); }
  }
}

TEST_CASE("Gemma 3n from GGUF") {
  if (!have_data()) return;
  check_source(source_at(kData + "/goldens/gguf/gemma3n_text.gguf"), Golden(kModels + "gemma3n_text"), kAllCases);
}

namespace {

// A text model's folder as the wrapper for images and sound has it, with a tensor of another tower.
ModelSource wrapped(const std::string& name, const std::string& architecture, const std::string& model_type) {
  auto file = SafetensorsFile::open_path(kModels + name + "/model.safetensors");
  REQUIRE(file.ok());
  nlohmann::json header = nlohmann::json::object();
  std::string bytes;
  const auto add = [&](const std::string& tensor, const std::vector<uint64_t>& shape, const std::string& values) {
    header[tensor] = {
        {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {bytes.size(), bytes.size() + values.size()}}};
    bytes += values;
  };
  for (const TensorEntry& tensor : (*file)->tensors()) {
    std::string values(tensor.bytes, '\0');
    REQUIRE((*file)->read(tensor, 0, std::as_writable_bytes(std::span(values))).ok());
    REQUIRE(tensor.name.starts_with("model."));
    add("model.language_model." + tensor.name.substr(6), tensor.shape, values);
  }
  add("model.vision_tower.patch_embedder.weight", {2}, std::string(8, '\0'));
  const std::string text = header.dump();
  const uint64_t length = text.size();
  ModelSource out;
  out.sources.push_back(
      source_of(std::string(reinterpret_cast<const char*>(&length), 8) + text + bytes, "model.safetensors"));
  nlohmann::json inner = nlohmann::json::parse(read_file(kModels + name + "/config.json"));
  inner.erase("architectures");
  const nlohmann::json config = {{"architectures", {architecture}},
                                 {"model_type", model_type},
                                 {"text_config", inner},
                                 {"vision_config", {{"hidden_size", 8}}},
                                 {"eos_token_id", {1, 5}}};
  out.config_json = config.dump();
  return out;
}

}  // namespace

TEST_CASE("the text of wrapped Gemma 3n and 4") {
  if (!have_data()) return;
  const std::tuple<const char*, const char*, const char*> kWrappers[] = {
      {"gemma3n_text", "Gemma3nForConditionalGeneration", "gemma3n"},
      {"gemma4_text", "Gemma4ForConditionalGeneration", "gemma4"}};
  for (const auto& [name, architecture, type] : kWrappers) {
    DYNAMIC_SECTION(name) {
      const ModelSource source = wrapped(name, architecture, type);
      CHECK(read_header(source).spec.eos_token_ids == std::vector<int32_t>{1, 5});
      check_source(source, Golden(kModels + name), {"p33"});
    }
  }
}

// Layers that see the keys and values of others keep none of their own.
TEST_CASE("the cache of Gemma 3n and 4 has no room for shared keys and values") {
  if (!have_data()) return;
  const auto parts = [](const std::string& name) {
    return kv_layouts(read_header(source_at(kModels + name)).spec, KvDType::kF32).size();
  };
  CHECK(parts("gemma3n_text") == 3);
  CHECK(parts("gemma4_text") == 4);
  CHECK(parts("gemma4_moe_text") == 3);
}

TEST_CASE("the older config style of Gemma 3n says the same") {
  if (!have_data()) return;
  ModelSource source = source_with_config(kModels + "gemma3n_text", "config.json");
  const size_t from = source.config_json.find("\"rope_parameters\"");
  const size_t to = source.config_json.find("\"sliding_window\"");
  REQUIRE(from != std::string::npos);
  REQUIRE(to > from);
  source.config_json.replace(from, to - from, "\"rope_theta\": 1000000.0, \"rope_local_base_freq\": 10000.0, ");
  const ModelHeader newer = read_header(source_at(kModels + "gemma3n_text")), older = read_header(source);
  CHECK(spec_to_json(newer.spec) == spec_to_json(older.spec));
  CHECK(newer.spec == older.spec);
}

// Published files name the heads of full layers for all of them at once.
TEST_CASE("the heads of full layers follow from two keys as well as from a list") {
  if (!have_data()) return;
  const auto with = [](const std::string& name, const std::string& keys) {
    ModelSource source = source_with_config(kModels + name, "config.json");
    const size_t from = source.config_json.find("\"per_layer_config\"");
    const size_t to = source.config_json.find("\"rms_norm_eps\"");
    REQUIRE(from != std::string::npos);
    REQUIRE(to > from);
    source.config_json.replace(from, to - from, keys);
    return read_header(source).spec;
  };
  const auto original = [](const std::string& name) { return read_header(source_at(kModels + name)).spec; };
  CHECK(with("gemma4_text", "\"global_head_dim\": 32, \"num_global_key_value_heads\": 1, ") == original("gemma4_text"));
  CHECK(with("gemma4_moe_text", "\"global_head_dim\": 32, \"num_global_key_value_heads\": 1, ") ==
        original("gemma4_moe_text"));
}

namespace {

GgufMeta gemma4_meta(uint32_t layers, uint32_t length) {
  GgufMeta meta = {{"general.architecture", std::string("gemma4")}};
  const auto put = [&](const std::string& key, GgufMetaValue value) { meta["gemma4." + key] = std::move(value); };
  put("block_count", layers);
  put("context_length", 512u);
  put("embedding_length", 64u);
  put("feed_forward_length", length);
  put("attention.head_count", 4u);
  put("attention.head_count_kv", 2u);
  put("attention.layer_norm_rms_epsilon", 1e-5f);
  put("attention.key_length", 32u);
  put("attention.value_length", 32u);
  put("attention.key_length_swa", 16u);
  put("attention.value_length_swa", 16u);
  put("attention.sliding_window", 32u);
  put("rope.dimension_count", 32u);
  put("rope.dimension_count_swa", 16u);
  put("rope.freq_base", 1e6f);
  put("rope.freq_base_swa", 1e4f);
  put("final_logit_softcapping", 30.0f);
  return meta;
}

// As converters name them; of the sixteen pairs of a full layer's head four rotate.
void add_gemma4_tensors(ConvertedFile& file, const std::string& name) {
  std::vector<float> factors(16, 1e30f);
  std::fill_n(factors.begin(), 4, 1.0f);
  file.add("rope_freqs.weight", {16}, std::move(factors));
  file.add_all(kModels + name + "/model.safetensors",
               {{"model.layers.", "blk."},
                {"model.embed_tokens_per_layer", "per_layer_token_embd"},
                {"model.per_layer_model_projection", "per_layer_model_proj"},
                {"model.per_layer_projection_norm", "per_layer_proj_norm"},
                {"model.embed_tokens", "token_embd"},
                {"model.norm", "output_norm"},
                {"input_layernorm", "attn_norm"},
                {"post_attention_layernorm", "post_attention_norm"},
                {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                {"pre_feedforward_layernorm", "ffn_norm"},
                {"post_feedforward_layernorm", "post_ffw_norm"},
                {"self_attn.q_proj", "attn_q"},
                {"self_attn.k_proj", "attn_k"},
                {"self_attn.v_proj", "attn_v"},
                {"self_attn.o_proj", "attn_output"},
                {"self_attn.q_norm", "attn_q_norm"},
                {"self_attn.k_norm", "attn_k_norm"},
                {"mlp.gate_proj", "ffn_gate"},
                {"mlp.up_proj", "ffn_up"},
                {"mlp.down_proj", "ffn_down"},
                {"per_layer_input_gate", "inp_gate"},
                {"per_layer_projection", "proj"},
                {"post_per_layer_input_norm", "post_norm"},
                {"layer_scalar", "layer_output_scale.weight"},
                {"router.proj", "ffn_gate_inp"},
                {"router.scale", "ffn_gate_inp.scale"},
                {"router.per_expert_scale", "ffn_down_exps.scale"},
                {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
                {"experts.down_proj", "ffn_down_exps.weight"}},
               0.0f);
}

}  // namespace

TEST_CASE("Gemma 4 from GGUF") {
  if (!have_data()) return;
  GgufMeta meta = gemma4_meta(6, 64);
  meta["gemma4.feed_forward_length"] = std::vector<uint32_t>{64, 64, 64, 64, 128, 128};
  meta["gemma4.attention.sliding_window_pattern"] = std::vector<bool>{true, false, true, false, true, false};
  meta["gemma4.attention.shared_kv_layers"] = 2u;
  meta["gemma4.embedding_length_per_layer_input"] = 8u;
  ConvertedFile file(meta);
  add_gemma4_tensors(file, "gemma4_text");
  check_source(file.source(), Golden(kModels + "gemma4_text"), kAllCases);
}

TEST_CASE("Gemma 4 with experts from GGUF") {
  if (!have_data()) return;
  GgufMeta meta = gemma4_meta(3, 48);
  meta["gemma4.attention.head_count_kv"] = std::vector<uint32_t>{2, 2, 1};
  meta["gemma4.attention.sliding_window_pattern"] = std::vector<bool>{true, true, false};
  meta["gemma4.attention.shared_kv_layers"] = 0u;
  meta["gemma4.embedding_length_per_layer_input"] = 0u;
  meta["gemma4.expert_count"] = 8u;
  meta["gemma4.expert_used_count"] = 2u;
  meta["gemma4.expert_feed_forward_length"] = 24u;
  ConvertedFile file(meta);
  add_gemma4_tensors(file, "gemma4_moe_text");
  check_source(file.source(), Golden(kModels + "gemma4_moe_text"), kAllCases);
}

TEST_CASE("keys of Gemma 3n and 4 that no list names, or that say something else, are refused by name") {
  if (!have_data()) return;
  const auto check = [](const std::string& name, const std::string& from, const std::string& to, StatusCode code,
                        const std::string& place) {
    const Status status = ModelHeader::read(changed(name, from, to)).status();
    INFO(name << " " << to << ": " << status.to_string());
    CHECK(status.code() == code);
    CHECK(status.place().find(place) != std::string::npos);
  };
  for (const std::string& name : kNames) {
    check(name, "{", "{\"attention_twist\": 2,", StatusCode::kUnsupported, "/attention_twist");
  }
  check("gemma4_text", "\"use_bidirectional_attention\": null", "\"use_bidirectional_attention\": \"all\"",
        StatusCode::kUnsupported, "/use_bidirectional_attention");
  check("gemma4_text", "\"head_dim\": 32", "\"window\": 32", StatusCode::kUnsupported, "/per_layer_config/1/window");
  check("gemma4_text", "\"1\": {", "\"17\": {", StatusCode::kUnsupported, "/per_layer_config/17");
  check("gemma4_text", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 6", StatusCode::kMalformed,
        "/num_kv_shared_layers");
  check("gemma4_text", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 5", StatusCode::kMalformed,
        "/num_kv_shared_layers");
  check("gemma4_text", "\"hidden_size_per_layer_input\": 8", "\"hidden_size_per_layer_input\": 16",
        StatusCode::kMalformed, "embed_tokens_per_layer.weight");
  check("gemma4_text", "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1.5", StatusCode::kMalformed,
        "partial_rotary_factor");
  check("gemma4_moe_text", "\"top_k_experts\": 2", "\"top_k_experts\": 9", StatusCode::kMalformed, "/top_k_experts");
  check("gemma4_moe_text", "\"num_experts\": 8", "\"num_experts\": 4", StatusCode::kMalformed, "router.proj.weight");
  check("gemma3n_text", "\"altup_active_idx\": 0", "\"altup_active_idx\": 4", StatusCode::kMalformed,
        "/altup_active_idx");
  check("gemma3n_text", "\"altup_num_inputs\": 4", "\"altup_num_inputs\": 3", StatusCode::kMalformed, "altup");
  check("gemma3n_text", "\"laurel_rank\": 8", "\"laurel_rank\": 4", StatusCode::kMalformed,
        "laurel.linear_left.weight");
  check("gemma3n_text", "0.9,", "1.0,", StatusCode::kMalformed, "/activation_sparsity_pattern");
  check("gemma3n_text", "0.9,", "", StatusCode::kMalformed, "/activation_sparsity_pattern");
  check("gemma3n_text", "    64,\n", "", StatusCode::kMalformed, "/intermediate_size");
}
