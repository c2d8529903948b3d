// A head in the file of a model whose config calls it a copy of the embeddings.
#include <algorithm>

#include "unit/imported_family.h"

using namespace headrace;
using nlohmann::json;

namespace {

json gpt2_config() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", 20},
          {"n_embd", 8},
          {"n_head", 2},
          {"n_layer", 1},
          {"n_positions", 16},
          {"tie_word_embeddings", true}};
}

Shapes gpt2_shapes() {
  const std::string layer = "transformer.h.0.";
  Shapes out = {{"lm_head.weight", {20, 8}},         {"transformer.wte.weight", {20, 8}},
                {"transformer.wpe.weight", {16, 8}}, {layer + "attn.c_attn.weight", {8, 24}},
                {layer + "attn.c_attn.bias", {24}},  {layer + "attn.c_proj.weight", {8, 8}},
                {layer + "attn.c_proj.bias", {8}},   {layer + "mlp.c_fc.weight", {8, 32}},
                {layer + "mlp.c_fc.bias", {32}},     {layer + "mlp.c_proj.weight", {32, 8}},
                {layer + "mlp.c_proj.bias", {8}}};
  for (const std::string& norm : {layer + "ln_1", layer + "ln_2", std::string("transformer.ln_f")}) {
    out[norm + ".weight"] = out[norm + ".bias"] = {8};
  }
  return out;
}

// One byte of lm_head.weight, the first tensor of the file, is another.
Result<ImportedModel> import_changed(const Shapes& shapes, size_t place) {
  std::string bytes = file_of(shapes);
  uint64_t header = 0;
  std::copy_n(bytes.data(), 8, reinterpret_cast<char*>(&header));
  bytes[8 + header + place] = 1;
  auto file = SafetensorsFile::open({open_memory(std::as_bytes(std::span(bytes)), "model.safetensors", [] {})});
  REQUIRE(file.ok());
  return import_config(gpt2_config(), **file);
}

}  // namespace

TEST_CASE("a head that is no copy of the embeddings is the head, whatever the config says") {
  const auto copy = import(gpt2_config(), gpt2_shapes());
  INFO(copy.status().to_string());
  REQUIRE(copy.ok());
  CHECK(copy->spec.head.tied);
  for (const size_t place : {size_t{0}, size_t{20 * 8 * 4 - 1}}) {
    const auto other = import_changed(gpt2_shapes(), place);
    REQUIRE(other.ok());
    CHECK_FALSE(other->spec.head.tied);
    CHECK(weight(*other, "lm_head.weight").file_name == "lm_head.weight");
  }
  Shapes without = gpt2_shapes();
  without.erase("lm_head.weight");
  CHECK(import(gpt2_config(), without)->spec.head.tied);
  Shapes longer = gpt2_shapes();
  longer["lm_head.weight"] = {24, 8};
  check_refused(import(gpt2_config(), longer), StatusCode::kMalformed, "lm_head.weight");
}
