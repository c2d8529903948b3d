// Models composed by a graft file. The reference is transformers': a model whose layers attend with as many key heads as query
// heads, each pair of them alike, computes what the golden model with half as many computes; so does what lies between, when
// some of its layers are the golden model's.
#include "golden/golden_checks.h"
#include "golden/graft_workshop.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

nlohmann::json replacement(const std::string& part, const std::string& from, const std::vector<int>& layers,
                           const std::vector<int>& from_layers = {}) {
  return {{"layers", layers}, {"part", part}, {"from", from}, {"from_layers", from_layers}};
}

std::vector<float> logits_of(const std::string& path, const std::vector<int32_t>& ids) {
  auto backend = std::move(all_backends().back());
  const auto model = load_model(read_header(source_at(path)), *backend);
  ForwardPass forward(model->spec(), model->weights(), *backend);
  auto cache = make_cache(model->spec(), KvDType::kF32);
  return run_prompt(forward, model->spec(), *cache, ids).logits;
}

int32_t kv_heads(const ModelHeader& header, size_t layer) {
  return std::get<GqaAttention>(header.spec.layers[layer].attention).num_kv_heads;
}

void check_refused(const std::string& path, StatusCode code, const std::string& place) {
  const auto header = ModelHeader::read(source_at(path));
  REQUIRE_FALSE(header.ok());
  INFO("expected " << place << ", got " << header.status().to_string());
  CHECK(header.status().code() == code);
  CHECK(header.status().place().find(place) != std::string::npos);
}

}  // namespace

TEST_CASE("grouped queries in place of one layer's full attention give transformers' logits") {
  const Workshop workshop;
  const Golden golden(kLlama);
  check_source(source_at(workshop.path("base")), golden, {"p40"});
  const std::string path = workshop.graft({replacement("attention", kLlama, {1})});
  const ModelHeader header = read_header(source_at(path));
  CHECK(kv_heads(header, 0) == 4);
  CHECK(kv_heads(header, 1) == 2);
  const auto described = nlohmann::json::parse(header.describe());
  CHECK(described["grafts"].size() == 1);
  CHECK(described["grafts"][0]["part"] == "attention");
  check_source(source_at(path), golden, {"p40"});
  check_cuts(path, golden.ids("p40.input_ids"));
}

TEST_CASE("a donor needs no more than what is taken from it") {
  const Workshop workshop;
  const Golden golden(kLlama);
  const std::string whole = workshop.graft({replacement("attention", kLlama, {1})});
  const auto expected = logits_of(whole, golden.ids("p40.input_ids"));
  Tensors part;
  const Tensors all = read_tensors(kLlama + "/model.safetensors");
  for (const std::string name : {"k_proj", "v_proj"}) {
    const std::string full = "model.layers.1.self_attn." + name + ".weight";
    part[full] = all.at(full);
  }
  write_tensors(workshop.path("part.safetensors"), part);
  nlohmann::json sparse = replacement("attention", "part.safetensors", {1});
  sparse["config"]["num_key_value_heads"] = 2;
  sparse["keep"] = {"attention_norm", "q_proj", "o_proj"};
  CHECK(logits_of(workshop.graft({sparse}), golden.ids("p40.input_ids")) == expected);
  sparse["keep"] = {"attention_norm", "q_proj"};
  check_refused(workshop.graft({sparse}), StatusCode::kNotFound,
                "/replace/0: part.safetensors: model.layers.1.self_attn.o_proj.weight");
}

TEST_CASE("a donor may be read under several configs") {
  const Workshop workshop;
  nlohmann::json narrow = replacement("attention", kLlama, {0});
  narrow["config"]["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  const std::string path = workshop.graft({replacement("attention", kLlama, {1}), narrow});
  const ModelHeader header = read_header(source_at(path));
  const auto rope = [&](size_t layer) { return std::get<GqaAttention>(header.spec.layers[layer].attention).rope; };
  CHECK(rope(0).theta == 500.0);
  CHECK(rope(1).theta != 500.0);
  check_cuts(path, Golden(kLlama).ids("p40.input_ids"));
}

TEST_CASE("a graft of a model with itself is that model") {
  const Workshop workshop;
  const std::vector<int32_t> ids = Golden(kLlama).ids("p40.input_ids");
  const auto expected = logits_of(workshop.path("base"), ids);
  CHECK(logits_of(workshop.graft({}), ids) == expected);
  for (const std::string part : {"attention", "feed_forward", "layer"}) {
    INFO(part);
    CHECK(logits_of(workshop.graft({replacement(part, "base", {0, 1})}), ids) == expected);
  }
  // Layers in another order are another model.
  CHECK(logits_of(workshop.graft({replacement("layer", "base", {0, 1}, {1, 0})}), ids) != expected);
}

TEST_CASE("a layer of another architecture in a GGUF file") {
  const Workshop workshop;
  const std::string path = workshop.graft(
      {replacement("layer", kShipped + "qwen3", {0}, {1}), replacement("feed_forward", kLlama + "/model.gguf", {1})});
  const ModelHeader header = read_header(source_at(path));
  CHECK(std::get<GqaAttention>(header.spec.layers[0].attention).qk_norm);
  CHECK_FALSE(std::get<GqaAttention>(header.spec.layers[1].attention).qk_norm);
  check_cuts(path, Golden(kLlama).ids("p40.input_ids"));
}

TEST_CASE("grafts that cannot be made are refused by name") {
  const Workshop workshop;
  const auto changed = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json wrong = replacement("attention", kLlama, {1});
    wrong[key] = value;
    return workshop.graft({wrong});
  };
  check_refused(changed("part", "head"), StatusCode::kMalformed, "/replace/0/part");
  check_refused(changed("layers", {2}), StatusCode::kMalformed, "/replace/0");
  check_refused(changed("layers", {-1}), StatusCode::kMalformed, "/replace/0/layers");
  check_refused(changed("layers", nlohmann::json::array()), StatusCode::kMalformed, "/replace/0/layers");
  check_refused(changed("from_layers", {0, 1}), StatusCode::kMalformed, "/replace/0/from_layers");
  check_refused(changed("from_layers", {7}), StatusCode::kMalformed, "/replace/0");
  check_refused(changed("from", "nowhere"), StatusCode::kNotFound, "/replace/0: nowhere");
  check_refused(changed("keep", {"gate_proj"}), StatusCode::kMalformed, "/replace/0");
  check_refused(changed("keep", {"k_proj"}), StatusCode::kMalformed, "layers.1.k_proj.weight");  // of another shape
  check_refused(changed("colour", "red"), StatusCode::kUnsupported, "/replace/0/colour");
  check_refused(changed("config", {{"hidden_act", "relu7"}}), StatusCode::kUnsupported, "hidden_act");
  check_refused(changed("config", {{"rms_norm_eps", 1e-3}}), StatusCode::kUnsupported, "/replace/0");
  check_refused(changed("config", {{"num_attention_heads", 5}}), StatusCode::kMalformed, "/replace/0");
  check_refused(workshop.graft({nlohmann::json(7)}), StatusCode::kMalformed, "/replace/0");

  const nlohmann::json whole = {{"format", "headrace graft 1"}, {"base", "base"}};
  const auto file = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json graft = whole;
    graft[key] = value;
    return workshop.write("other.json", graft);
  };
  check_refused(file("format", "headrace graft 2"), StatusCode::kUnsupported, "/format");
  check_refused(file("replace", 7), StatusCode::kMalformed, "/replace");
  check_refused(file("base", nullptr), StatusCode::kMalformed, "/base");
  check_refused(file("base", "other.json"), StatusCode::kUnsupported, "/base");
  check_refused(file("base", "nowhere"), StatusCode::kNotFound, "nowhere");
  check_refused(file("encoder", "x"), StatusCode::kUnsupported, "/encoder");
  check_refused(workshop.write("other.json", nlohmann::json::array()), StatusCode::kMalformed, "other.json");
  check_refused(workshop.path("none.json"), StatusCode::kNotFound, "none.json");
  std::ofstream(workshop.path("cut.json")) << R"({"format": "headrace)";
  check_refused(workshop.path("cut.json"), StatusCode::kMalformed, "cut.json: line 1");
}
