// Importers of encoders: what a config and the shapes of a file become, and what is refused by name. Their computation is
// tested against transformers in tests/golden.
#include "unit/imported_family.h"

using namespace headrace;
using nlohmann::json;

namespace {

// One layer, hidden 8, intermediate 12, 2 heads, vocabulary 20, 16 positions.
json bert_config(const char* architecture, const char* model_type = "bert") {
  return {{"architectures", {architecture}},
          {"model_type", model_type},
          {"vocab_size", 20},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"max_position_embeddings", 16},
          {"type_vocab_size", 2}};
}

// gamma and beta: as the first checkpoints call the parts of a norm.
Shapes bert_shapes(const std::string& prefix, bool old_norms = false) {
  Shapes out = {{prefix + "embeddings.word_embeddings.weight", {20, 8}},
                {prefix + "embeddings.position_embeddings.weight", {16, 8}},
                {prefix + "embeddings.token_type_embeddings.weight", {2, 8}}};
  const std::string layer = prefix + "encoder.layer.0.";
  const std::tuple<const char*, uint64_t, uint64_t> kLinears[] = {
      {"attention.self.query", 8, 8},   {"attention.self.key", 8, 8},  {"attention.self.value", 8, 8},
      {"attention.output.dense", 8, 8}, {"intermediate.dense", 12, 8}, {"output.dense", 8, 12}};
  for (const auto& [name, rows, cols] : kLinears) {
    out[layer + name + ".weight"] = {rows, cols};
    out[layer + name + ".bias"] = {rows};
  }
  for (const std::string& norm :
       {prefix + "embeddings.LayerNorm", layer + "attention.output.LayerNorm", layer + "output.LayerNorm"}) {
    out[norm + (old_norms ? ".gamma" : ".weight")] = {8};
    out[norm + (old_norms ? ".beta" : ".bias")] = {8};
  }
  return out;
}

Shapes with_linear(Shapes shapes, const std::string& name, uint64_t rows) {
  shapes[name + ".weight"] = {rows, 8};
  shapes[name + ".bias"] = {rows};
  return shapes;
}

ImportedModel imported(const json& config, const Shapes& shapes) {
  auto model = import(config, shapes);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

}  // namespace

TEST_CASE("BERT alone has its pooler for a head, where the file has one") {
  const ModelSpec bare = imported(bert_config("BertModel"), bert_shapes("")).spec;
  CHECK(bare.head.kind == HeadKind::kNone);
  CHECK(head_width(bare) == 0);
  CHECK(attends_both_ways(bare));
  CHECK_FALSE(bare.final_norm);
  CHECK(bare.layers[0].stream_norms);
  const ModelSpec spec = imported(bert_config("BertModel"), with_linear(bert_shapes(""), "pooler.dense", 8)).spec;
  CHECK(spec.head.kind == HeadKind::kTransform);
  CHECK(spec.head.transform->activation == Activation::kTanh);
  CHECK(head_width(spec) == 8);
  CHECK(spec_to_json(bare) != spec_to_json(spec));
}

TEST_CASE("the first BERT checkpoints keep other heads, a buffer and older names of norms") {
  Shapes shapes = with_linear(bert_shapes("bert.", true), "cls.predictions.transform.dense", 8);
  shapes["cls.predictions.transform.LayerNorm.gamma"] = shapes["cls.predictions.transform.LayerNorm.beta"] = {8};
  shapes["cls.predictions.decoder.weight"] = {20, 8};
  shapes["cls.predictions.bias"] = {20};
  shapes = with_linear(shapes, "bert.pooler.dense", 8);
  shapes = with_linear(shapes, "cls.seq_relationship", 2);
  shapes["bert.embeddings.position_ids"] = {1, 16};
  const ImportedModel model = imported(bert_config("BertForMaskedLM"), shapes);
  CHECK(model.spec.head.tied);
  CHECK(model.spec.head.bias);
  CHECK(weight(model, "lm_head.bias").file_name == "cls.predictions.bias");
  CHECK(weight(model, "transform.weight").file_name == "cls.predictions.transform.dense.weight");
  CHECK(weight(model, "layers.0.attention_stream_norm.weight").file_name ==
        "bert.encoder.layer.0.attention.output.LayerNorm.gamma");
  json untied = bert_config("BertForMaskedLM");
  untied["tie_word_embeddings"] = false;
  CHECK(weight(imported(untied, shapes), "lm_head.weight").file_name == "cls.predictions.decoder.weight");
}

TEST_CASE("classifiers have as many labels as their matrix has rows") {
  const Shapes bert = with_linear(with_linear(bert_shapes("bert."), "bert.pooler.dense", 8), "classifier", 3);
  const ModelSpec spec = imported(bert_config("BertForSequenceClassification"), bert).spec;
  CHECK(spec.head.kind == HeadKind::kLabels);
  CHECK(spec.head.num_labels == 3);
  CHECK(spec.head.pooling == Pooling::kFirst);
  json config = bert_config("BertForSequenceClassification");
  config["id2label"] = {{"0", "a"}, {"1", "b"}};
  check_refused(import(config, bert), StatusCode::kMalformed, "/id2label");

  const Shapes roberta =
      with_linear(with_linear(bert_shapes("roberta."), "classifier.dense", 8), "classifier.out_proj", 1);
  for (const auto& [architecture, type] : {std::pair("RobertaForSequenceClassification", "roberta"),
                                           std::pair("XLMRobertaForSequenceClassification", "xlm-roberta")}) {
    const ModelSpec scored = imported(bert_config(architecture, type), roberta).spec;
    CHECK(scored.head.num_labels == 1);
    CHECK(scored.position_padding_id == 1);
    CHECK(scored.max_position_embeddings == 14);
  }
}

TEST_CASE("what BERT's importers do not compute is refused") {
  const Shapes shapes = bert_shapes("");
  for (const auto& [key, value] : {std::pair<const char*, json>("is_decoder", true),
                                   {"position_embedding_type", "relative_key"},
                                   {"add_cross_attention", true},
                                   {"hidden_act", "laplace"},
                                   {"embedding_size", 4}}) {
    json config = bert_config("BertModel");
    config[key] = value;
    check_refused(import(config, shapes), StatusCode::kUnsupported, std::string("/") + key);
  }
  Shapes more = shapes;
  more["embeddings.extra.weight"] = {8};
  check_refused(import(bert_config("BertModel"), more), StatusCode::kUnsupported, "embeddings.extra.weight");
  Shapes fewer = shapes;
  fewer.erase("encoder.layer.0.output.dense.bias");
  check_refused(import(bert_config("BertModel"), fewer), StatusCode::kNotFound, "encoder.layer.0.output.dense.bias");
}

TEST_CASE("Nomic's first configs go by GPT-2's names, and reach as far as they were trained") {
  const json config = {{"architectures", {"NomicBertModel"}},
                       {"model_type", "nomic_bert"},
                       {"vocab_size", 20},
                       {"n_embd", 8},
                       {"n_inner", 12},
                       {"n_layer", 1},
                       {"n_head", 2},
                       {"n_positions", 8192},
                       {"layer_norm_epsilon", 1e-12},
                       {"activation_function", "swiglu"},
                       {"rotary_emb_base", 1000},
                       {"rotary_emb_fraction", 1.0},
                       {"rotary_emb_interleaved", false},
                       {"rotary_emb_scale_base", nullptr},
                       {"causal", false},
                       {"prenorm", false},
                       {"qkv_proj_bias", false},
                       {"mlp_fc1_bias", false},
                       {"mlp_fc2_bias", false},
                       {"use_flash_attn", true},
                       {"type_vocab_size", 2}};
  const Shapes shapes = {{"embeddings.word_embeddings.weight", {20, 8}},
                         {"embeddings.token_type_embeddings.weight", {2, 8}},
                         {"emb_ln.weight", {8}},
                         {"emb_ln.bias", {8}},
                         {"encoder.layers.0.attn.Wqkv.weight", {24, 8}},
                         {"encoder.layers.0.attn.out_proj.weight", {8, 8}},
                         {"encoder.layers.0.mlp.fc11.weight", {12, 8}},
                         {"encoder.layers.0.mlp.fc12.weight", {12, 8}},
                         {"encoder.layers.0.mlp.fc2.weight", {8, 12}},
                         {"encoder.layers.0.norm1.weight", {8}},
                         {"encoder.layers.0.norm1.bias", {8}},
                         {"encoder.layers.0.norm2.weight", {8}},
                         {"encoder.layers.0.norm2.bias", {8}}};
  const ModelSpec spec = imported(config, shapes).spec;
  CHECK(spec.max_position_embeddings == 2048);
  CHECK(std::get<GqaAttention>(spec.layers[0].attention).rope.theta == 1000.0);
  CHECK(std::get<DenseFeedForward>(spec.layers[0].feed_forward).gated);
  for (const auto& [key, value] : {std::pair<const char*, json>("qkv_proj_bias", true),
                                   {"activation_function", "gelu"},
                                   {"prenorm", true},
                                   {"rotary_scaling_factor", 2.0},
                                   {"moe_every_n_layers", 2}}) {
    json other = config;
    other[key] = value;
    check_refused(import(other, shapes), StatusCode::kUnsupported, std::string("/") + key);
  }
}

TEST_CASE("ModernBERT's older configs have a pattern of windows and two thetas of their own") {
  json config = {{"architectures", {"ModernBertModel"}},
                 {"model_type", "modernbert"},
                 {"vocab_size", 20},
                 {"hidden_size", 8},
                 {"intermediate_size", 12},
                 {"num_hidden_layers", 4},
                 {"num_attention_heads", 2},
                 {"max_position_embeddings", 64},
                 {"local_attention", 16},
                 {"global_attn_every_n_layers", 3},
                 {"global_rope_theta", 5000.0},
                 {"local_rope_theta", 100.0},
                 {"position_embedding_type", "absolute"},
                 {"reference_compile", false}};
  Shapes shapes = {
      {"embeddings.tok_embeddings.weight", {20, 8}}, {"embeddings.norm.weight", {8}}, {"final_norm.weight", {8}}};
  for (int i = 0; i < 4; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    shapes[layer + "attn.Wqkv.weight"] = {24, 8};
    shapes[layer + "attn.Wo.weight"] = {8, 8};
    shapes[layer + "mlp.Wi.weight"] = {24, 8};
    shapes[layer + "mlp.Wo.weight"] = {8, 12};
    shapes[layer + "mlp_norm.weight"] = {8};
    if (i > 0) shapes[layer + "attn_norm.weight"] = {8};
  }
  const auto windows = [&](const ModelSpec& spec) {
    std::vector<std::pair<int32_t, double>> out;
    for (const LayerSpec& layer : spec.layers) {
      const auto& attention = std::get<GqaAttention>(layer.attention);
      out.emplace_back(attention.window, attention.rope.theta);
    }
    return out;
  };
  using Windows = std::vector<std::pair<int32_t, double>>;
  CHECK(windows(imported(config, shapes).spec) == Windows{{0, 5000.0}, {9, 100.0}, {9, 100.0}, {0, 5000.0}});
  config["local_rope_theta"] = nullptr;
  CHECK(windows(imported(config, shapes).spec)[1] == std::pair<int32_t, double>(9, 5000.0));
  config["rope_parameters"] = {{"rope_type", "default"}};
  check_refused(import(config, shapes), StatusCode::kUnsupported, "/rope_parameters");
}
