// Importers of dense families: what a config and the shapes of a file become, and what is refused by name. Their
// computation is tested against transformers in tests/golden.
#include <cmath>

#include "model/rope_length.h"
#include "unit/imported_family.h"

using namespace headrace;
using nlohmann::json;

namespace {

// One layer, hidden 8, intermediate 12, 4 heads of 4, 2 key/value heads, vocabulary 20.
json phi3_config() {
  return {{"architectures", {"Phi3ForCausalLM"}},
          {"model_type", "phi3"},
          {"vocab_size", 20},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"max_position_embeddings", 128},
          {"original_max_position_embeddings", 32},
          {"rope_scaling", {{"type", "su"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {4.0, 8.0}}}}};
}

Shapes phi3_shapes() {
  return {{"model.embed_tokens.weight", {20, 8}},
          {"model.norm.weight", {8}},
          {"lm_head.weight", {20, 8}},
          {"model.layers.0.input_layernorm.weight", {8}},
          {"model.layers.0.post_attention_layernorm.weight", {8}},
          {"model.layers.0.self_attn.qkv_proj.weight", {32, 8}},
          {"model.layers.0.self_attn.o_proj.weight", {8, 16}},
          {"model.layers.0.mlp.gate_up_proj.weight", {24, 8}},
          {"model.layers.0.mlp.down_proj.weight", {8, 12}}};
}

const GqaAttention& attention(const ImportedModel& model) {
  return std::get<GqaAttention>(model.spec.layers[0].attention);
}

json gpt_config(const char* architecture, const char* type) {
  return {{"architectures", {architecture}},
          {"model_type", type},
          {"vocab_size", 20},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 1},
          {"n_embd", 8},
          {"n_layer", 1},
          {"num_attention_heads", 2},
          {"n_head", 2},
          {"n_inner", 12},
          {"n_positions", 16},
          {"max_position_embeddings", 16},
          {"tie_word_embeddings", true}};
}

}  // namespace

TEST_CASE("phi3: tensors that hold several weights, and two sets of frequencies") {
  const auto model = import(phi3_config(), phi3_shapes());
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  CHECK(weight(*model, "layers.0.q_proj.weight").offset == 0);
  CHECK(weight(*model, "layers.0.k_proj.weight").offset == 16 * 8);
  CHECK(weight(*model, "layers.0.v_proj.weight").offset == 24 * 8);
  CHECK(weight(*model, "layers.0.up_proj.weight").offset == 12 * 8);
  const RopeSpec& rope = attention(*model).rope;
  CHECK(rope.type == "longrope");
  CHECK(rope.short_length == 32);
  // theta 10000 over 4 dims: periods 1 and 100.
  CHECK(rope.inv_freq[0] == 1.0f);
  CHECK(rope.inv_freq[1] == Approx(1.0 / 200.0));
  CHECK(rope.long_inv_freq[0] == 0.25f);
  CHECK(rope.long_inv_freq[1] == Approx(1.0 / 800.0));
  CHECK(rope.attention_factor == Approx(std::sqrt(1.0 + std::log(4.0) / std::log(32.0))));
  CHECK(rope_length(model->spec, 32) == 0);
  CHECK(rope_length(model->spec, 33) == 33);
  CHECK(rope_length(model->spec, 100) == 33);
  CHECK(longest_of_rope_length(model->spec, 0) == 32);
  CHECK(longest_of_rope_length(model->spec, 33) > 1000000);
  CHECK(longest_sequence(model->spec) == model->spec.max_position_embeddings);
}

TEST_CASE("phi3: what does not fit is refused") {
  Shapes shapes = phi3_shapes();
  shapes["model.layers.0.self_attn.qkv_proj.weight"] = {40, 8};
  check_refused(import(phi3_config(), shapes), StatusCode::kMalformed, "qkv_proj.weight");
  json config = phi3_config();
  config["rope_scaling"]["long_factor"] = {1.0};
  check_refused(import(config, phi3_shapes()), StatusCode::kMalformed, "rope_parameters");
  config["rope_scaling"]["long_factor"] = {1.0, 0.0};
  check_refused(import(config, phi3_shapes()), StatusCode::kMalformed, "rope_parameters");
  config = phi3_config();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  check_refused(import(config, phi3_shapes()), StatusCode::kUnsupported, "rope_type");
  config = phi3_config();
  config["partial_rotary_factor"] = 1.5;
  check_refused(import(config, phi3_shapes()), StatusCode::kMalformed, "partial_rotary_factor");
  config = phi3_config();
  config["mystery"] = 1;
  check_refused(import(config, phi3_shapes()), StatusCode::kUnsupported, "/mystery");
}

TEST_CASE("gpt_neox: q, k and v take turns of a head in one tensor") {
  Shapes shapes = {{"gpt_neox.embed_in.weight", {20, 8}},
                   {"gpt_neox.final_layer_norm.weight", {8}},
                   {"gpt_neox.final_layer_norm.bias", {8}}};
  const std::string p = "gpt_neox.layers.0.";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    shapes[p + norm + ".weight"] = shapes[p + norm + ".bias"] = {8};
  }
  shapes[p + "attention.query_key_value.weight"] = {24, 8};
  shapes[p + "attention.query_key_value.bias"] = {24};
  shapes[p + "attention.dense.weight"] = {8, 8};
  shapes[p + "attention.dense.bias"] = {8};
  shapes[p + "mlp.dense_h_to_4h.weight"] = {12, 8};
  shapes[p + "mlp.dense_h_to_4h.bias"] = {12};
  shapes[p + "mlp.dense_4h_to_h.weight"] = {8, 12};
  shapes[p + "mlp.dense_4h_to_h.bias"] = {8};
  json config = gpt_config("GPTNeoXForCausalLM", "gpt_neox");
  for (const char* key : {"n_embd", "n_layer", "n_head", "n_inner", "n_positions"}) config.erase(key);
  config["rotary_pct"] = 0.5;
  const auto model = import(config, shapes);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  CHECK(model->spec.layers[0].parallel);
  CHECK(model->spec.norm == NormKind::kLayer);
  CHECK(attention(*model).rope.rotary_dim == 2);
  const WeightEntry& k = weight(*model, "layers.0.k_proj.weight");
  CHECK(k.offset == 4 * 8);        // after the first head's q
  CHECK(k.head_stride == 12 * 8);  // q, k and v of a head
  CHECK(weight(*model, "layers.0.v_proj.bias").offset == 8);
  shapes[p + "attention.query_key_value.weight"] = {16, 8};
  check_refused(import(config, shapes), StatusCode::kMalformed, "query_key_value.weight");
}

TEST_CASE("gpt2: learned positions and its own names of keys") {
  json config = gpt_config("GPT2LMHeadModel", "gpt2");
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
    config.erase(key);
  }
  Shapes shapes = {{"wte.weight", {20, 8}}, {"wpe.weight", {16, 8}}, {"ln_f.weight", {8}}, {"ln_f.bias", {8}}};
  const std::map<std::string, std::vector<uint64_t>> kLayer = {{"attn.c_attn.weight", {8, 24}},
                                                               {"attn.c_attn.bias", {24}},
                                                               {"attn.c_proj.weight", {8, 8}},
                                                               {"attn.c_proj.bias", {8}},
                                                               {"mlp.c_fc.weight", {8, 12}},
                                                               {"mlp.c_fc.bias", {12}},
                                                               {"mlp.c_proj.weight", {12, 8}},
                                                               {"mlp.c_proj.bias", {8}},
                                                               {"ln_1.weight", {8}},
                                                               {"ln_1.bias", {8}},
                                                               {"ln_2.weight", {8}},
                                                               {"ln_2.bias", {8}}};
  for (const auto& [name, shape] : kLayer) shapes["h.0." + name] = shape;
  const auto model = import(config, shapes);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  CHECK(model->spec.learned_positions == 16);
  CHECK(attention(*model).rope.rotary_dim == 0);
  const WeightEntry& up = weight(*model, "layers.0.up_proj.weight");
  CHECK(up.row_stride == 1);
  CHECK(up.col_stride == 12);
  config["scale_attn_by_inverse_layer_idx"] = true;
  check_refused(import(config, shapes), StatusCode::kUnsupported, "scale_attn_by_inverse_layer_idx");
}
