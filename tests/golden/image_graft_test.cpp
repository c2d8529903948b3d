// One model's encoder for images in front of another's decoder. The reference is transformers': LLaVA's own encoder in front of
// its own decoder, taken apart, computes what LLaVA does.
#include "golden/golden_checks.h"
#include "golden/graft_workshop.h"
#include "golden/image_case.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
const std::string kLlava = kModels + "llava_clip";

bool have_data() { return have_golden(kLlava); }

// LLaVA's decoder as a model of its own, "decoder", and its other tensors, by their names.
Tensors take_apart(const Workshop& workshop) {
  fs::create_directory(workshop.path("decoder"));
  nlohmann::json config = nlohmann::json::parse(read_file(kLlava + "/config.json"))["text_config"];
  config["architectures"] = {"LlamaForCausalLM"};
  workshop.write("decoder/config.json", config);
  Tensors text, others;
  const std::string prefix = "language_model.";
  for (const auto& [name, tensor] : read_tensors(kLlava + "/model.safetensors")) {
    (name.starts_with(prefix) ? text[name.substr(prefix.size())] : others[name]) = tensor;
  }
  write_tensors(workshop.path("decoder/model.safetensors"), text);
  return others;
}

nlohmann::json graft_of(const std::string& base, const nlohmann::json& images) {
  return {{"format", "headrace graft 1"}, {"base", base}, {"images", images}};
}

void check_images(const std::string& path, const Golden& golden) {
  for (const auto& backend : all_backends()) {
    const auto model = load_model(read_header(source_at(path)), *backend);
    ForwardPass forward(model->spec(), model->weights(), *backend);
    for (const std::string prompt : {"p5_img", "p33_img"}) {
      INFO(backend->name() << " " << prompt);
      const ImageCase image(*model, *backend, golden, prompt);
      auto cache = make_cache(model->spec(), KvDType::kF32);
      Runner runner{*model, forward, *cache, image};
      check_logits(golden, prompt, runner.prompt().logits, model->spec().vocab_size);
      check_greedy(golden, prompt, runner.greedy(24));
    }
    check_case(*model, *backend, golden, "p33");
  }
}

std::vector<float> text_logits(const std::string& path, const std::vector<int32_t>& ids) {
  auto backend = std::move(all_backends().back());
  const auto model = load_model(read_header(source_at(path)), *backend);
  ForwardPass forward(model->spec(), model->weights(), *backend);
  auto cache = make_cache(model->spec(), KvDType::kF32);
  return run_prompt(forward, model->spec(), *cache, ids).logits;
}

void check_refused(const std::string& path, StatusCode code, const std::string& place) {
  const auto header = ModelHeader::read(source_at(path));
  REQUIRE_FALSE(header.ok());
  INFO("expected " << place << ", got " << header.status().to_string());
  CHECK(header.status().code() == code);
  CHECK(header.status().place().find(place) != std::string::npos);
}

}  // namespace

TEST_CASE("an encoder put in front of its own decoder gives transformers' logits") {
  if (!have_data()) return;
  const Workshop workshop;
  const Golden golden(kLlava);
  const Tensors others = take_apart(workshop);
  SECTION("with the projector of its folder") {
    const std::string path = workshop.write("graft.json", graft_of("decoder", {{"from", kLlava}, {"token", 6}}));
    const auto described = nlohmann::json::parse(read_header(source_at(path)).describe());
    CHECK(described["grafts"] == nlohmann::json::parse(R"([{"part": "images", "from": ")" + kLlava + R"("}])"));
    CHECK(described["vision"]["encoder"]["architecture"] == "clip_vision");
    check_images(path, golden);
  }
  SECTION("with a projector in a file of its own") {
    Tensors projector;
    for (const auto& [name, tensor] : others) {
      if (name.find("projector") != std::string::npos) projector[name] = tensor;
    }
    write_tensors(workshop.path("projector.safetensors"), projector);
    const nlohmann::json images = {{"from", kLlava}, {"token", 6}, {"projector", "projector.safetensors"}};
    check_images(workshop.write("graft.json", graft_of("decoder", images)), golden);
    projector.erase("multi_modal_projector.linear_2.bias");
    write_tensors(workshop.path("projector.safetensors"), projector);
    check_refused(workshop.write("graft.json", graft_of("decoder", images)), StatusCode::kNotFound,
                  "multi_modal_projector.linear_2.bias");
  }
}

TEST_CASE("an encoder in front of another's decoder leaves text as it was") {
  if (!have_data()) return;
  const Workshop workshop;
  for (const std::string base : {"qwen2", "qwen3", "gemma2", "mamba2"}) {
    for (const std::string donor : {"llava_clip", "gemma3_vlm"}) {
      DYNAMIC_SECTION(donor << " before " << base) {
        const std::string path =
            workshop.write("graft.json", graft_of(kModels + base, {{"from", kModels + donor}, {"token", 7}}));
        const Golden golden(kModels + base);
        for (const std::string prompt : {"p33", "p150"}) {
          const std::vector<int32_t> ids = golden.ids(prompt + ".input_ids");
          CHECK(text_logits(path, ids) == text_logits(kModels + base, ids));
        }
        // And an image changes what comes behind it.
        auto backend = std::move(all_backends().back());
        const auto model = load_model(read_header(source_at(path)), *backend);
        ForwardPass forward(model->spec(), model->weights(), *backend);
        auto cache = make_cache(model->spec(), KvDType::kF32);
        const Golden images(kModels + donor);
        ImageCase image(*model, *backend, images, "p33_img", 6);
        Runner runner{*model, forward, *cache, image};
        const PromptResult whole = runner.prompt();
        for (const float logit : whole.logits) REQUIRE(std::isfinite(logit));
        CHECK(runner.prompt(5).logits == whole.logits);
        for (float& value : image.rows) value = -value;
        CHECK(runner.prompt().logits != whole.logits);
      }
    }
  }
}

TEST_CASE("encoders that do not go before a decoder are refused by name") {
  if (!have_data()) return;
  const Workshop workshop;
  const auto graft = [&](const std::string& base, const nlohmann::json& images) {
    return workshop.write("graft.json", graft_of(base, images));
  };
  const std::string base = kModels + "qwen2";
  check_refused(graft(base, {{"from", kLlava}}), StatusCode::kMalformed, "/images/token");
  check_refused(graft(base, {{"from", kLlava}, {"token", 320}}), StatusCode::kMalformed, "/images/token");
  check_refused(graft(base, {{"from", kLlava}, {"token", "<image>"}}), StatusCode::kMalformed, "/images/token");
  check_refused(graft(base, {{"token", 6}}), StatusCode::kMalformed, "/images/from");
  check_refused(graft(base, {{"from", "nowhere"}, {"token", 6}}), StatusCode::kNotFound, "/images: nowhere");
  check_refused(graft(base, {{"from", kModels + "qwen3"}, {"token", 6}}), StatusCode::kUnsupported, "/images");
  check_refused(graft(base, {{"from", kLlava}, {"token", 6}, {"colour", 1}}), StatusCode::kUnsupported,
                "/images/colour");
  check_refused(graft(base, {{"from", kLlava}, {"token", 6}, {"projector", "none.safetensors"}}), StatusCode::kNotFound,
                "none.safetensors");
  check_refused(graft(base, {{"from", kLlava}, {"token", 6}, {"config", {{"vision_feature_layer", 9}}}}),
                StatusCode::kMalformed, "vision_feature_layer");
  check_refused(graft(base, 7), StatusCode::kMalformed, "/images");
  // Its images' rows rotate by two positions.
  check_refused(graft(base, {{"from", kModels + "qwen2_5_vl"}, {"token", 6}}), StatusCode::kUnsupported, "/images");
  // Rows of 32 values, and a projector that gives 64.
  check_refused(graft(kLlama, {{"from", kLlava}, {"token", 6}}), StatusCode::kMalformed,
                "multi_modal_projector.linear");
}
