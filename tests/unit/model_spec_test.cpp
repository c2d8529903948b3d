// What importers make of configs and GGUF metadata, and how they refuse what they cannot honour.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/families/family.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/model_header.h"
#include "ops/backend.h"
#include "unit/gguf_writer.h"

using namespace headrace;
using nlohmann::json;

namespace {

using Shapes = std::map<std::string, std::vector<uint64_t>>;

uint64_t elements(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;
  return count;
}

// A safetensors file of F32 values 0.01.
std::shared_ptr<ByteSource> safetensors_source(const Shapes& shapes) {
  json header = json::object();
  uint64_t offset = 0;
  for (const auto& [name, shape] : shapes) {
    const uint64_t bytes = elements(shape) * 4;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  out += text;
  const std::vector<float> values(offset / 4, 0.01f);
  out.append(reinterpret_cast<const char*>(values.data()), offset);
  return source_of(std::move(out), "model.safetensors");
}

// hidden 8, intermediate 12, 4 heads, 2 key/value heads, vocabulary 20.
Shapes hf_shapes(int layers, uint64_t head_dim, bool qkv_bias, bool all_bias, bool qk_norm, bool sandwich) {
  Shapes out = {{"model.embed_tokens.weight", {20, 8}}, {"model.norm.weight", {8}}, {"lm_head.weight", {20, 8}}};
  for (int i = 0; i < layers; ++i) {
    const std::string p = fmt::format("model.layers.{}.", i);
    out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = {8};
    if (sandwich) {
      out[p + "pre_feedforward_layernorm.weight"] = out[p + "post_feedforward_layernorm.weight"] = {8};
    }
    const std::tuple<const char*, uint64_t, uint64_t, bool> kLinears[] = {
        {"self_attn.q_proj", 4 * head_dim, 8, qkv_bias},
        {"self_attn.k_proj", 2 * head_dim, 8, qkv_bias},
        {"self_attn.v_proj", 2 * head_dim, 8, qkv_bias},
        {"self_attn.o_proj", 8, 4 * head_dim, all_bias},
        {"mlp.gate_proj", 12, 8, all_bias},
        {"mlp.up_proj", 12, 8, all_bias},
        {"mlp.down_proj", 8, 12, all_bias}};
    for (const auto& [name, rows, cols, bias] : kLinears) {
      out[p + name + ".weight"] = {rows, cols};
      if (bias) out[p + name + ".bias"] = {rows};
    }
    if (qk_norm) out[p + "self_attn.q_norm.weight"] = out[p + "self_attn.k_norm.weight"] = {head_dim};
  }
  return out;
}

json base_config(const char* architecture, const char* model_type, int layers) {
  return {{"architectures", {architecture}},
          {"model_type", model_type},
          {"vocab_size", 20},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"bos_token_id", 0},
          {"eos_token_id", {7, 1}}};
}

json llama_config() { return base_config("LlamaForCausalLM", "llama", 2); }
Shapes llama_shapes() { return hf_shapes(2, 2, false, false, false, false); }

Result<ImportedModel> import(const json& config, const Shapes& shapes) {
  auto file = SafetensorsFile::open({safetensors_source(shapes)});
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  return import_config(config, **file);
}

ModelSpec imported(const json& config, const Shapes& shapes) {
  auto out = import(config, shapes);
  INFO(out.status().to_string());
  REQUIRE(out.ok());
  return out->spec;
}

const GqaAttention& attention(const ModelSpec& spec, size_t layer) {
  return std::get<GqaAttention>(spec.layers[layer].attention);
}

void check_refused(const Status& status, StatusCode code, const std::string& place) {
  INFO("expected " << place << ", got " << status.to_string());
  CHECK(status.code() == code);
  CHECK(status.place().find(place) != std::string::npos);
}

// A changed llama config is refused, naming the key.
void check_config(const char* key, json value, StatusCode code = StatusCode::kMalformed) {
  json config = llama_config();
  config[key] = std::move(value);
  const auto out = import(config, llama_shapes());
  INFO(key);
  REQUIRE_FALSE(out.ok());
  check_refused(out.status(), code, std::string("/") + key);
}

// Tensors of values 0.5.
std::shared_ptr<ByteSource> gguf_source(const GgufMeta& meta, const Shapes& shapes) {
  std::vector<GgufTensor> tensors;
  for (const auto& [name, shape] : shapes) tensors.push_back({name, shape, std::vector<float>(elements(shape), 0.5f)});
  return source_of(gguf_text(meta, tensors), "model.gguf");
}

Shapes gguf_shapes(int layers, bool qkv_bias, bool qk_norm, bool sandwich) {
  Shapes out = {{"token_embd.weight", {20, 8}}, {"output_norm.weight", {8}}};
  for (int i = 0; i < layers; ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    out[p + "attn_norm.weight"] = out[p + "ffn_norm.weight"] = {8};
    if (sandwich) out[p + "post_attention_norm.weight"] = out[p + "post_ffw_norm.weight"] = {8};
    out[p + "attn_q.weight"] = out[p + "attn_output.weight"] = {8, 8};
    out[p + "attn_k.weight"] = out[p + "attn_v.weight"] = {4, 8};
    out[p + "ffn_gate.weight"] = out[p + "ffn_up.weight"] = {12, 8};
    out[p + "ffn_down.weight"] = {8, 12};
    if (qkv_bias) {
      out[p + "attn_q.bias"] = {8};
      out[p + "attn_k.bias"] = out[p + "attn_v.bias"] = {4};
    }
    if (qk_norm) out[p + "attn_q_norm.weight"] = out[p + "attn_k_norm.weight"] = {2};
  }
  return out;
}

GgufMeta gguf_meta(const std::string& arch, uint32_t layers) {
  return {{"general.architecture", arch},          {arch + ".block_count", layers},
          {arch + ".context_length", 128u},        {arch + ".embedding_length", 8u},
          {arch + ".feed_forward_length", 12u},    {arch + ".attention.head_count", 4u},
          {arch + ".attention.head_count_kv", 2u}, {arch + ".attention.layer_norm_rms_epsilon", 1e-5f},
          {arch + ".rope.freq_base", 10000.0f},    {"tokenizer.ggml.eos_token_id", 1u}};
}

Result<ImportedModel> import(const GgufMeta& meta, const Shapes& shapes) {
  auto file = GgufFile::open({gguf_source(meta, shapes)});
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  return import_gguf(**file);
}

void check_gguf(const std::string& key, GgufMetaValue value, StatusCode code = StatusCode::kMalformed) {
  GgufMeta meta = gguf_meta("llama", 2);
  meta[key] = std::move(value);
  const auto out = import(meta, gguf_shapes(2, false, false, false));
  INFO(key);
  REQUIRE_FALSE(out.ok());
  check_refused(out.status(), code, key);
}

ModelSource llama_source() {
  ModelSource source;
  source.sources.push_back(safetensors_source(llama_shapes()));
  source.config_json = llama_config().dump();
  return source;
}

}  // namespace

TEST_CASE("llama config") {
  json config = llama_config();
  config["rope_theta"] = 500000.0;
  const ModelSpec spec = imported(config, llama_shapes());
  CHECK(spec.architecture == "llama");
  CHECK(spec.layers.size() == 2);
  CHECK(attention(spec, 0).head_dim == 2);
  CHECK(attention(spec, 0).scale == static_cast<float>(1 / std::sqrt(2.0)));
  CHECK(attention(spec, 1).window == 0);
  CHECK_FALSE(attention(spec, 0).rope.interleaved);
  CHECK(attention(spec, 0).rope.inv_freq == std::vector<float>{1.0f});
  CHECK(spec.eos_token_ids == std::vector<int32_t>{1, 7});
  CHECK_FALSE(spec.head.tied);

  config["tie_word_embeddings"] = true;  // the file's lm_head is then a copy
  CHECK(imported(config, llama_shapes()).head.tied);
  config["attention_bias"] = config["mlp_bias"] = true;
  const ModelSpec biased = imported(config, hf_shapes(2, 2, true, true, false, false));
  CHECK(attention(biased, 0).output_bias);
  CHECK(std::get<DenseFeedForward>(biased.layers[1].feed_forward).bias);
  config.erase("architectures");
  CHECK(imported(config, hf_shapes(2, 2, true, true, false, false)) == biased);
}

TEST_CASE("rope scalings are equal in both config styles") {
  const json kScalings[] = {{{"rope_type", "linear"}, {"factor", 4.0}},
                            {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 32}},
                            {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}};
  for (const json& scaling : kScalings) {
    json older = llama_config(), newer = llama_config();
    older["head_dim"] = newer["head_dim"] = 16;
    older["rope_theta"] = 1000.0;
    older["rope_scaling"] = scaling;
    newer["rope_parameters"] = scaling;
    newer["rope_parameters"]["rope_theta"] = 1000.0;
    const Shapes shapes = hf_shapes(2, 16, false, false, false, false);
    const ModelSpec spec = imported(older, shapes);
    CHECK(spec == imported(newer, shapes));
    const RopeSpec& rope = attention(spec, 0).rope;
    CHECK(rope.type == scaling["rope_type"].get<std::string>());
    // The slowest dim is interpolated by the factor, whatever the scheme.
    const float plain = static_cast<float>(std::pow(1000.0, -14.0 / 16));
    CHECK(rope.inv_freq[7] == Approx(plain / scaling["factor"].get<float>()).epsilon(1e-6));
    CHECK(rope.attention_factor == Approx(rope.type == "yarn" ? 0.1 * std::log(4.0) + 1 : 1.0));
  }
  // "type" is the key of the oldest configs.
  json oldest = llama_config();
  oldest["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  CHECK(attention(imported(oldest, llama_shapes()), 0).rope.inv_freq[0] == 0.5f);
}

TEST_CASE("qwen configs") {
  json config = base_config("Qwen2ForCausalLM", "qwen2", 3);
  config["use_sliding_window"] = true;
  config["sliding_window"] = 5;
  config["max_window_layers"] = 2;
  const Shapes shapes = hf_shapes(3, 2, true, false, false, false);
  ModelSpec spec = imported(config, shapes);
  CHECK(attention(spec, 0).qkv_bias);
  CHECK_FALSE(attention(spec, 0).output_bias);
  CHECK(attention(spec, 1).window == 0);
  CHECK(attention(spec, 2).window == 5);
  json by_type = config;
  by_type["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  by_type.erase("max_window_layers");
  CHECK(imported(by_type, shapes) == spec);
  by_type["use_sliding_window"] = false;
  check_refused(import(by_type, shapes).status(), StatusCode::kMalformed, "/layer_types");
  config["use_sliding_window"] = false;
  CHECK(attention(imported(config, shapes), 2).window == 0);

  json third = base_config("Qwen3ForCausalLM", "qwen3", 1);
  third["head_dim"] = 4;
  spec = imported(third, hf_shapes(1, 4, false, false, true, false));
  CHECK(attention(spec, 0).qk_norm);
  CHECK(attention(spec, 0).scale == 0.5f);
}

TEST_CASE("gemma3 config") {
  json config = base_config("Gemma3ForCausalLM", "gemma3_text", 7);
  config["head_dim"] = 4;
  config["query_pre_attn_scalar"] = 16;
  config["sliding_window"] = 9;
  config["rope_theta"] = 1e6;
  config["rope_local_base_freq"] = 1e4;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const Shapes shapes = hf_shapes(7, 4, false, false, true, true);
  const ModelSpec spec = imported(config, shapes);
  CHECK(spec.norm_weight_offset == 1.0f);
  CHECK(spec.embedding_scale == std::sqrt(8.0f));
  CHECK(spec.layers[0].post_attention_norm);
  CHECK(attention(spec, 0).scale == 0.25f);
  CHECK(attention(spec, 4).window == 9);
  CHECK(attention(spec, 5).window == 0);
  CHECK(attention(spec, 6).window == 9);
  CHECK(attention(spec, 4).rope.inv_freq == std::vector<float>{1.0f, 0.01f});
  CHECK(attention(spec, 5).rope.inv_freq[0] == 0.125f);
  json newer = config;
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) newer.erase(key);
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  CHECK(imported(newer, shapes) == spec);
  config["sliding_window_pattern"] = 2;
  CHECK(attention(imported(config, shapes), 1).window == 0);
  config["use_bidirectional_attention"] = true;
  check_refused(import(config, shapes).status(), StatusCode::kUnsupported, "/use_bidirectional_attention");
}

TEST_CASE("configs that cannot be honoured name the key") {
  check_config("num_hidden_layers", 0);
  check_config("num_hidden_layers", 1000000000);
  check_config("num_hidden_layers", "2");
  check_config("num_hidden_layers", nullptr);
  check_config("hidden_size", -8);
  check_config("vocab_size", 1e300);
  check_config("num_attention_heads", 6);
  check_config("num_key_value_heads", 3);
  check_config("num_key_value_heads", 0);
  check_config("head_dim", 0);
  check_config("eos_token_id", 20);
  check_config("eos_token_id", -1);
  check_config("rope_theta", "10000");
  check_config("tie_word_embeddings", 1);
  check_config("model_type", "qwen2");
  check_config("hidden_act", "mish", StatusCode::kUnsupported);
  check_config("architectures", {"MysteryForCausalLM"}, StatusCode::kUnsupported);
  check_config("num_experts", 8, StatusCode::kUnsupported);
  check_config("num_local_experts", 8, StatusCode::kUnsupported);
  check_config("partial_rotary_factor", 0.5, StatusCode::kUnsupported);
  check_config("residual_multiplier", 0.2, StatusCode::kUnsupported);
  check_config("sliding_window", 64, StatusCode::kUnsupported);
  check_config("attn_logit_softcapping", 5, StatusCode::kUnsupported);
  check_config("is_encoder_decoder", true, StatusCode::kUnsupported);
  check_config("rope_interleaved", true, StatusCode::kUnsupported);
  json nameless = llama_config();
  nameless["architectures"] = {""};
  nameless.erase("model_type");
  check_refused(import(nameless, llama_shapes()).status(), StatusCode::kUnsupported, "architectures");
  json unknown = llama_config();
  unknown["architectures"] = {"UnheardOfForCausalLM"};
  check_refused(import(unknown, llama_shapes()).status(), StatusCode::kUnsupported, "architectures");
  json odd = llama_config();
  odd["head_dim"] = 3;  // an odd number of dims cannot rotate
  check_refused(import(odd, llama_shapes()).status(), StatusCode::kMalformed, "head_dim");
  for (const char* type : {"mrope", "x"}) {
    json config = llama_config();
    config["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
    check_refused(import(config, llama_shapes()).status(), StatusCode::kUnsupported, "/rope_scaling/rope_type");
  }
  json config = llama_config();
  config["rope_scaling"] = {{"rope_type", "linear"}};
  check_refused(import(config, llama_shapes()).status(), StatusCode::kMalformed, "/rope_scaling/factor");
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 0.0}};
  CHECK_FALSE(import(config, llama_shapes()).ok());
  CHECK_FALSE(import_config(json::array(), **SafetensorsFile::open({safetensors_source(llama_shapes())})).ok());
}

TEST_CASE("every family refuses keys that it does not know, by name") {
  const std::pair<const char*, const char*> kClasses[] = {
      {"LlamaForCausalLM", "llama"},         {"MistralForCausalLM", "mistral"},
      {"Qwen2ForCausalLM", "qwen2"},         {"Qwen3ForCausalLM", "qwen3"},
      {"Gemma3ForCausalLM", "gemma3_text"},  {"Lfm2ForCausalLM", "lfm2"},
      {"MambaForCausalLM", "mamba"},         {"Mamba2ForCausalLM", "mamba2"},
      {"FalconH1ForCausalLM", "falcon_h1"},  {"Qwen3_5ForCausalLM", "qwen3_5_text"},
      {"Qwen3NextForCausalLM", "qwen3_next"}};
  for (const auto& [architecture, type] : kClasses) {
    INFO(architecture);
    json config = base_config(architecture, type, 2);
    config["made_up_key"] = 1;
    check_refused(import(config, llama_shapes()).status(), StatusCode::kUnsupported, "/made_up_key");
  }
  json harmless = llama_config();
  for (const char* key : {"attention_dropout", "pretraining_tp", "rope_interleaved", "is_encoder_decoder"}) {
    harmless[key] = key[0] == 'r' || key[0] == 'i' ? json(false) : json(1);
  }
  CHECK(imported(harmless, llama_shapes()) == imported(llama_config(), llama_shapes()));
  json wrapper = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                  {"model_type", "gemma3"},
                  {"text_config", {{"made_up_key", 1}}}};
  check_refused(import(wrapper, llama_shapes()).status(), StatusCode::kUnsupported, "/text_config/made_up_key");
}

TEST_CASE("tensors are checked against the spec") {
  Shapes shapes = llama_shapes();
  shapes.erase("model.layers.1.mlp.up_proj.weight");
  check_refused(import(llama_config(), shapes).status(), StatusCode::kNotFound, "model.layers.1.mlp.up_proj.weight");
  shapes = llama_shapes();
  shapes["model.embed_tokens.weight"] = {19, 8};
  check_refused(import(llama_config(), shapes).status(), StatusCode::kMalformed, "model.embed_tokens.weight");
  shapes = llama_shapes();
  shapes["model.layers.0.self_attn.q_proj.bias"] = {8};
  check_refused(import(llama_config(), shapes).status(), StatusCode::kUnsupported,
                "model.layers.0.self_attn.q_proj.bias");
}

TEST_CASE("a spec whose norms do not go with its blocks is refused by name") {
  const ModelSpec good = imported(llama_config(), llama_shapes());
  const auto check = [&](const char* place, const std::function<void(LayerSpec&)>& change) {
    ModelSpec spec = good;
    change(spec.layers[1]);
    check_refused(validate_spec(spec), StatusCode::kMalformed, place);
  };
  check("layers.1.attention_residual.normed", [](LayerSpec& layer) {
    layer.attention_residual.normed = true;
    layer.attention_norm = false;
  });
  check("layers.1.feed_forward_residual.keep", [](LayerSpec& layer) { layer.feed_forward_residual.keep = 2.0f; });
  check("layers.1.attention_residual.scale", [](LayerSpec& layer) { layer.attention_residual.scale = INFINITY; });
  check("layers.1.parallel", [](LayerSpec& layer) {
    layer.parallel = true;
    layer.feed_forward_residual.normed = true;
  });
  check("layers.1.attention_norm", [](LayerSpec& layer) {
    layer.attention = ShortConv{8, 3, false};
    layer.attention_norm = false;
  });
  check("layers.1.attention.conv_parts", [](LayerSpec& layer) {
    GatedDelta delta{.num_heads = 2, .num_key_heads = 2, .key_dim = 4, .value_dim = 4, .kernel = 4, .norm_eps = 1e-5f};
    delta.conv_parts = {8, 8, 7};
    layer.attention = delta;
  });
}

TEST_CASE("a layer that leans on another is refused by name where that has nothing for it") {
  const ModelSpec good = imported(llama_config(), llama_shapes());
  REQUIRE(good.layers.size() >= 2);
  const auto check = [&](const char* place, const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = good;
    change(spec);
    check_refused(validate_spec(spec), StatusCode::kMalformed, place);
  };
  const auto attention = [](ModelSpec& spec, size_t layer) -> GqaAttention& {
    return std::get<GqaAttention>(spec.layers[layer].attention);
  };
  ModelSpec shared = good;
  attention(shared, 1).kv_layer = 0;
  CHECK(validate_spec(shared).ok());
  CHECK(kv_layouts(shared, KvDType::kF16).size() + 1 == kv_layouts(good, KvDType::kF16).size());
  check("layers.1.attention.kv_layer", [&](ModelSpec& spec) { attention(spec, 1).kv_layer = 1; });
  check("layers.0.attention.kv_layer", [&](ModelSpec& spec) { attention(spec, 0).kv_layer = 0; });
  check("layers.1.attention.kv_layer", [&](ModelSpec& spec) {
    attention(spec, 1).kv_layer = 0;
    attention(spec, 1).head_dim *= 2;
  });
  check("layers.1.attention.kv_layer", [&](ModelSpec& spec) {
    attention(spec, 1).kv_layer = 0;
    spec.layers[0].attention = NoAttention{};
  });

  SparseLatentAttention sparse;
  sparse.latent = {
      .num_heads = 2, .q_rank = 4, .rank = 4, .nope_dim = 4, .rope_dim = 2, .v_dim = 4, .scale = 1.0f, .rope = {}};
  sparse.top_k = 8;
  Indexer indexer{.num_heads = 2, .head_dim = 4, .rope = {}};
  check("layers.0.attention.indexer", [&](ModelSpec& spec) { spec.layers[0].attention = sparse; });
  check("layers.1.attention.indexer", [&](ModelSpec& spec) {
    sparse.indexer = indexer;
    spec.layers[0].attention = sparse;
    sparse.indexer.reset();
    sparse.top_k = 7;
    spec.layers[1].attention = sparse;
  });
  check("layers.0.attention.indexer.q_rank", [&](ModelSpec& spec) {
    sparse.indexer = indexer;
    sparse.latent.q_rank = 0;
    spec.layers[0].attention = sparse;
  });
}

TEST_CASE("streams, and what belongs to layers alone, are checked") {
  const ModelSpec good = imported(llama_config(), llama_shapes());
  const auto check = [&](const char* place, const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = good;
    change(spec);
    check_refused(validate_spec(spec), StatusCode::kMalformed, place);
  };
  check("altup_active_idx", [](ModelSpec& spec) { spec.streams = AltUp{4, 4, true}; });
  check("altup_num_inputs", [](ModelSpec& spec) { spec.streams = AltUp{1000, 0, true}; });
  check("hidden_size_per_layer_input", [](ModelSpec& spec) { spec.per_layer_inputs = PerLayerInputs{}; });
  check("layers.1.laurel_rank", [](ModelSpec& spec) { spec.layers[1].laurel_rank = -1; });
  check("layers.1.laurel_rank", [](ModelSpec& spec) {
    spec.layers[1].laurel_rank = 4;
    spec.layers[1].attention_norm = false;
  });
  check("layers.0.attention.v_dim", [](ModelSpec& spec) {
    auto& attention = std::get<GqaAttention>(spec.layers[0].attention);
    attention.value_norm = true;
    attention.v_dim = 1;
  });
  check("layers.0.feed_forward.gate_cutoff",
        [](ModelSpec& spec) { std::get<DenseFeedForward>(spec.layers[0].feed_forward).gate_cutoff = INFINITY; });
}

TEST_CASE("proportional rotations leave the slow pairs where they are") {
  RopeScaling scaling;
  scaling.type = "proportional";
  scaling.rotating_share = 0.25;
  const auto rope = make_rope(1e6, 32, scaling);
  REQUIRE(rope.ok());
  CHECK(rope->rotary_dim == 32);
  REQUIRE(rope->inv_freq.size() == 16);
  CHECK(rope->inv_freq[0] == 1.0f);
  CHECK(rope->inv_freq[3] == Approx(std::pow(1e6, -6.0 / 32)));
  for (size_t i = 4; i < 16; ++i) CHECK(rope->inv_freq[i] == 0.0f);
}

TEST_CASE("GGUF metadata") {
  const auto llama = import(gguf_meta("llama", 2), gguf_shapes(2, false, false, false));
  REQUIRE(llama.ok());
  CHECK(llama->spec.head.tied);
  CHECK(attention(llama->spec, 0).rope.interleaved);
  CHECK(llama->spec.eos_token_ids == std::vector<int32_t>{1});

  Shapes with_factors = gguf_shapes(2, false, false, false);
  with_factors["rope_freqs.weight"] = {1};  // 0.5, as every value here
  const auto scaled = import(gguf_meta("llama", 2), with_factors);
  REQUIRE(scaled.ok());
  CHECK(attention(scaled->spec, 0).rope.inv_freq[0] == 2.0f);

  const auto qwen2 = import(gguf_meta("qwen2", 2), gguf_shapes(2, true, false, false));
  REQUIRE(qwen2.ok());
  CHECK(attention(qwen2->spec, 0).qkv_bias);
  CHECK_FALSE(attention(qwen2->spec, 0).rope.interleaved);
  check_refused(import(gguf_meta("qwen2", 2), gguf_shapes(2, false, false, false)).status(), StatusCode::kNotFound,
                "blk.0.attn_q.bias");

  const auto qwen3 = import(gguf_meta("qwen3", 2), gguf_shapes(2, false, true, false));
  REQUIRE(qwen3.ok());
  CHECK(attention(qwen3->spec, 0).qk_norm);

  GgufMeta meta = gguf_meta("gemma3", 6);
  check_refused(import(meta, gguf_shapes(6, false, true, true)).status(), StatusCode::kMalformed,
                "gemma3.attention.sliding_window");
  meta["gemma3.attention.sliding_window"] = 9u;
  const auto gemma = import(meta, gguf_shapes(6, false, true, true));
  REQUIRE(gemma.ok());
  CHECK(gemma->spec.norm_weight_offset == 0.0f);
  CHECK(attention(gemma->spec, 0).window == 9);
  CHECK(attention(gemma->spec, 5).window == 0);
}

TEST_CASE("GGUF metadata that cannot be honoured names the key") {
  check_gguf("general.architecture", std::string("mystery"), StatusCode::kUnsupported);
  check_gguf("llama.block_count", 0u);
  check_gguf("llama.block_count", 1000000000u);
  check_gguf("llama.block_count", std::string("two"));
  check_gguf("llama.attention.head_count_kv", 3u);
  check_gguf("llama.attention.key_length", 0u);
  check_gguf("llama.vocab_size", 21u);
  check_gguf("llama.rope.dimension_count", 4u);
  check_gguf("llama.rope.dimension_count", 0u);
  check_gguf("tokenizer.ggml.eos_token_id", 20u);
  check_gguf("llama.attention.value_length", 4u, StatusCode::kUnsupported);
  check_gguf("llama.attention.causal", false, StatusCode::kUnsupported);
  check_gguf("llama.attention.sliding_window", 9u, StatusCode::kUnsupported);
  check_gguf("llama.residual_scale", 0.5f, StatusCode::kUnsupported);
  check_gguf("llama.rope.scaling.type", std::string("longrope"), StatusCode::kUnsupported);
  GgufMeta meta = gguf_meta("llama", 2);
  meta["llama.expert_count"] = 8u;
  check_refused(import(meta, gguf_shapes(2, false, false, false)).status(), StatusCode::kMalformed,
                "llama.expert_used_count");
  meta = gguf_meta("llama", 2);
  meta.erase("llama.attention.head_count");
  check_refused(import(meta, gguf_shapes(2, false, false, false)).status(), StatusCode::kMalformed,
                "llama.attention.head_count");
}

TEST_CASE("loading reports progress and can be cancelled") {
  auto backend = make_reference_backend();
  ModelLoadOptions options;
  double last = -1;
  options.progress = [&](double share) {
    CHECK(share >= last);
    last = share;
    return true;
  };
  const auto model = Model::load(llama_source(), options, *backend);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  CHECK(last == 1.0);
  CHECK((*model)->tokenizer() == nullptr);
  CHECK((*model)->chat_template().status().code() == StatusCode::kNotFound);
  CHECK((*model)->end_of_generation_ids() == std::vector<int32_t>{1, 7});

  options.progress = [](double share) { return share < 0.5; };
  CHECK(Model::load(llama_source(), options, *backend).status().code() == StatusCode::kCancelled);
}

TEST_CASE("the identity follows content and arithmetic") {
  auto backend = make_reference_backend();
  const auto identity = [&](ModelSource source, ModelLoadOptions options = {}) {
    auto model = Model::load(source, options, *backend);
    REQUIRE(model.ok());
    return (*model)->identity();
  };
  const Hash128 plain = identity(llama_source());
  CHECK(identity(llama_source()) == plain);
  ModelLoadOptions wider;
  wider.pack.activations = ActivationType::kInt16;
  CHECK_FALSE(identity(llama_source(), wider) == plain);
  ModelSource other = llama_source();
  json config = llama_config();
  config["rope_theta"] = 20000.0;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  other.config_json = config.dump();
  CHECK_FALSE(identity(other) == plain);
}

TEST_CASE("memory plan") {
  auto header = ModelHeader::read(llama_source());
  REQUIRE(header.ok());
  // Two layers of keys and values, two heads of two dims.
  CHECK(kv_bytes_per_token(header->spec, KvDType::kF32) == 2 * 2 * 2 * 2 * 4);
  CHECK(kv_bytes_per_token(header->spec, KvDType::kF16) == 2 * 2 * 2 * 2 * 2);
  const MemoryPlan none = header->plan(0);
  CHECK(none.rows[0].cache_tokens == 0);
  const uint64_t fixed = none.weight_bytes + none.workspace_bytes;
  const MemoryPlan plan = header->plan(fixed + 64 * 16 * 10 + 1);
  CHECK(plan.rows[0].cache_tokens == 160);
  CHECK(plan.rows[0].max_context == 128);
  CHECK(plan.rows[0].max_batch(33) == 3);
  CHECK(plan.rows[1].cache_tokens == 320);
  const auto described = json::parse(header->describe());
  CHECK(described["parameters"].get<uint64_t>() * 4 == described["weight_bytes"].get<uint64_t>());
  CHECK(described["types"]["F32"]["tensors"] == header->weights.size());
}

TEST_CASE("a batch is checked before anything is stored") {
  auto backend = make_reference_backend();
  const auto model = Model::load(llama_source(), {}, *backend);
  REQUIRE(model.ok());
  KvCacheConfig config;
  config.layers = kv_layouts((*model)->spec(), KvDType::kF32);
  config.num_blocks = 4;
  auto cache = KvCache::create(config);
  REQUIRE(cache.ok());
  KvSequence sequence = (*cache)->new_sequence();
  REQUIRE((*cache)->reserve(sequence, 2).ok());
  ForwardPass forward((*model)->spec(), (*model)->weights(), *backend);
  Batch good;
  good.token_ids = {3, 4};
  good.positions = {0, 1};
  good.query_start = {0, 2};
  good.block_tables = {sequence.block_ids().data()};
  good.slots = {(*cache)->slot(sequence, 0), (*cache)->slot(sequence, 1)};
  good.logits_rows = {1};
  std::vector<float> logits(20);
  REQUIRE(forward.run(good, **cache, logits.data()).ok());
  const auto check = [&](const char* place, auto change) {
    Batch bad = good;
    change(bad);
    check_refused(forward.run(bad, **cache, logits.data()), StatusCode::kInvalidArgument, place);
  };
  check("token_ids", [](Batch& b) { b.token_ids[1] = 20; });
  check("token_ids", [](Batch& b) { b.token_ids[0] = -1; });
  check("positions", [](Batch& b) { b.positions.pop_back(); });
  check("positions", [](Batch& b) { b.positions[0] = -1; });
  check("slots", [](Batch& b) { b.slots[0] = 64; });
  check("query_start", [](Batch& b) { b.query_start = {0, 1}; });
  check("query_start", [](Batch& b) { b.query_start.clear(); });
  check("logits_rows", [](Batch& b) { b.logits_rows = {1, 1}; });
  check("logits_rows", [](Batch& b) { b.logits_rows = {2}; });
  config.layers = kv_layouts((*model)->spec(), KvDType::kF32);
  config.layers[1].num_kv_heads = 4;
  auto other = KvCache::create(config);
  REQUIRE(other.ok());
  check_refused(forward.run(good, **other, logits.data()), StatusCode::kInvalidArgument, "cache");
}
