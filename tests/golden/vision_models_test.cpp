// Models that read images: transformers' image features, logits and greedy tokens, one arithmetic for any cut, and text alone.

#include "golden/golden_checks.h"
#include "golden/image_case.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kData = HEADRACE_TEST_DATA;
const std::string kModels = kData + "/goldens/models/";
const std::vector<std::string> kNames = {"llava_clip", "gemma3_vlm", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vl"};

bool have_data() { return have_golden(kModels + "llava_clip"); }

}  // namespace

TEST_CASE("models that read images agree with transformers") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      for (const auto& backend : all_backends()) {
        const auto model = load_model(read_header(source_at(kModels + name)), *backend);
        ForwardPass forward(model->spec(), model->weights(), *backend);
        for (const std::string prompt : {"p5_img", "p33_img"}) {
          INFO(backend->name() << " " << prompt);
          const ImageCase image(*model, *backend, golden, prompt);
          if (golden.has(prompt + ".image_features")) {
            const Tensor features = golden.floats(prompt + ".image_features");
            std::vector<float> got;
            for (size_t row = 0; row < features.shape[0]; ++row) {
              const float* from = image.rows.data() + row * static_cast<size_t>(model->vision()->row_floats());
              got.insert(got.end(), from, from + features.shape[1]);
            }
            CHECK(max_difference(got, features.values) <= golden.tolerance());
          }
          auto cache = make_cache(model->spec(), KvDType::kF32);
          Runner runner{*model, forward, *cache, image};
          const PromptResult result = runner.prompt();
          check_logits(golden, prompt, result.logits, model->spec().vocab_size);
          CHECK(max_difference(result.hidden, golden.floats(prompt + ".hidden").values) <= golden.tolerance());
          check_greedy(golden, prompt, runner.greedy(24));
        }
        check_case(*model, *backend, golden, "p33");
      }
    }
  }
}

TEST_CASE("prompts with images do not depend on the cut") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      for (const auto& backend : all_backends()) {
        const auto model = load_model(read_header(source_at(kModels + name)), *backend);
        ForwardPass forward(model->spec(), model->weights(), *backend);
        const ImageCase image(*model, *backend, golden, "p33_img");
        CHECK(ImageCase(*model, *backend, golden, "p33_img").rows == image.rows);
        for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kQ8}) {
          INFO(backend->name() << " kv " << kv_dtype_name(dtype));
          auto cache = make_cache(model->spec(), dtype);
          Runner runner{*model, forward, *cache, image};
          const PromptResult whole = runner.prompt();
          for (const int64_t chunk : {1, 5, 17}) {
            INFO("chunks of " << chunk);
            const PromptResult cut = runner.prompt(chunk);
            CHECK(cut.logits == whole.logits);
            CHECK(cut.hidden == whole.hidden);
          }
          // Between two others, one without the image's rows.
          const std::vector<int32_t> text(image.ids.begin(), image.ids.begin() + image.image.begin);
          Batch batch;
          std::vector<KvSequence> sequences;
          for (const auto* ids : {&text, &image.ids, &text}) {
            if (ids->empty()) continue;
            sequences.push_back(cache->new_sequence("batch"));
            REQUIRE(cache->reserve(sequences.back(), static_cast<int64_t>(ids->size())).ok());
          }
          size_t next = 0;
          for (const auto* ids : {&text, &image.ids, &text}) {
            if (ids->empty()) continue;
            const auto size = static_cast<int64_t>(ids->size());
            runner.add(batch, sequences[next++], *ids, size, ids == &image.ids ? size - 1 : size);
          }
          std::vector<float> logits(static_cast<size_t>(model->spec().vocab_size));
          REQUIRE(forward.run(batch, *cache, logits.data()).ok());
          CHECK(logits == std::vector<float>(whole.logits.end() - model->spec().vocab_size, whole.logits.end()));
        }
      }
    }
  }
}

TEST_CASE("text alone has the same bits beside an image and without one") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const Golden golden(kModels + name);
      auto backend = all_backends(1).back().release();
      const std::unique_ptr<Backend> owned(backend);
      const auto model = load_model(read_header(source_at(kModels + name)), *backend);
      ForwardPass forward(model->spec(), model->weights(), *backend);
      const std::vector<int32_t> ids = golden.ids("p33.input_ids");
      auto cache = make_cache(model->spec(), KvDType::kF32);
      const PromptResult plain = run_prompt(forward, model->spec(), *cache, ids);
      KvSequence sequence = cache->new_sequence();
      const auto size = static_cast<int64_t>(ids.size());
      REQUIRE(cache->reserve(sequence, size).ok());
      Batch batch;
      batch.add_sequence(*cache, sequence, ids, size, 0);
      add_image_rows(batch, model->spec(), *model->vision(), {}, 0, size);
      std::vector<float> logits(plain.logits.size());
      REQUIRE(forward.run(batch, *cache, logits.data()).ok());
      CHECK(logits == plain.logits);
    }
  }
}

TEST_CASE("a key that no list of a family with images names is refused by name") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    for (const char* part : {"", "text_config", "vision_config"}) {
      INFO(name << " " << part);
      const auto header = read_changed(
          kModels + name, [&](nlohmann::json& config) { (*part == 0 ? config : config[part])["attention_twist"] = 2; });
      REQUIRE_FALSE(header.ok());
      CHECK(header.status().code() == StatusCode::kUnsupported);
      const std::string place = (*part == 0 ? "" : "/") + std::string(part) + "/attention_twist";
      INFO(header.status().to_string());
      CHECK(header.status().place().find(place) != std::string::npos);
    }
  }
}

// The makers' files and those that newer transformers writes say the same in other words.
TEST_CASE("models that read images in the style of their makers") {
  if (!have_data()) return;
  const auto check = [](const std::string& name, const ConfigChange& change) {
    INFO(name);
    const auto changed = read_changed(kModels + name, change);
    INFO(changed.status().to_string());
    REQUIRE(changed.ok());
    const ModelHeader header = read_header(source_at(kModels + name));
    CHECK(changed->spec == header.spec);
    CHECK(*changed->vision == *header.vision);
    CHECK(vision_to_json(*changed->vision) == vision_to_json(*header.vision));
  };
  check("llava_clip", [](nlohmann::json& config) {
    config["image_token_id"] = config["image_token_index"];
    config["ignore_index"] = -100;
    config.erase("image_token_index");
    config.erase("projector_hidden_act");
    config["text_config"].erase("rope_parameters");
    config["text_config"]["rope_theta"] = 10000.0;
    config["vision_config"].erase("hidden_act");
    config["vision_config"]["vocab_size"] = 32000;
  });
  check("gemma3_vlm", [](nlohmann::json& config) {
    nlohmann::json& text = config["text_config"];
    for (const char* key : {"rope_parameters", "layer_types", "_sliding_window_pattern"}) text.erase(key);
    text["rope_theta"] = 1e6;
    text["rope_local_base_freq"] = 1e4;
    text["sliding_window_pattern"] = 3;
    config["vision_config"].erase("layer_norm_eps");
  });
  check("qwen2_5_vl", [](nlohmann::json& config) {
    const nlohmann::json text = config["text_config"];
    config.erase("text_config");
    for (const auto& item : text.items()) {
      if (item.key() != "model_type" && item.key() != "rope_parameters") config[item.key()] = item.value();
    }
    config.erase("layer_types");
    config["rope_theta"] = 10000.0;
    config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
    nlohmann::json& vision = config["vision_config"];
    vision["in_chans"] = 3;
    vision["spatial_patch_size"] = 8;
    for (const char* key : {"in_channels", "rope_parameters", "model_type"}) vision.erase(key);
  });
  for (const std::string name : {"qwen3_vl", "qwen3_5_vl"}) {
    check(name, [](nlohmann::json& config) {
      nlohmann::json& text = config["text_config"];
      text["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {4, 2, 2}}, {"mrope_interleaved", true}};
      text["rope_theta"] = 10000.0;
      if (text["rope_parameters"].contains("partial_rotary_factor")) text["partial_rotary_factor"] = 0.5;
      text.erase("rope_parameters");
      config["vision_config"].erase("rope_parameters");
    });
  }
}

TEST_CASE("values of models with images that are not built, or contradict each other, are refused by name") {
  if (!have_data()) return;
  const auto refused = [](const std::string& name, StatusCode code, const std::string& place,
                          const ConfigChange& change) { check_change_refused(kModels + name, code, place, change); };
  const auto set = [](const char* pointer, const nlohmann::json& value) {
    return [pointer, value](nlohmann::json& config) { config[nlohmann::json::json_pointer(pointer)] = value; };
  };
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported, kMalformed = StatusCode::kMalformed;
  refused("llava_clip", kUnsupported, "/vision_feature_select_strategy",
          set("/vision_feature_select_strategy", "full"));
  refused("llava_clip", kUnsupported, "/text_config/model_type", set("/text_config/model_type", "phi3"));
  refused("llava_clip", kUnsupported, "/vision_config/model_type",
          set("/vision_config/model_type", "siglip_vision_model"));
  refused("llava_clip", kMalformed, "/vision_feature_layer", set("/vision_feature_layer", -5));
  refused("llava_clip", kMalformed, "/image_token_index", set("/image_token_index", 320));
  refused("llava_clip", kMalformed, "position_embedding", set("/vision_config/image_size", 64));
  refused("llava_clip", kMalformed, "patch_embedding", set("/vision_config/num_channels", 1));
  refused("llava_clip", kUnsupported, "/vision_config/hidden_act", set("/vision_config/hidden_act", "mish"));
  refused("gemma3_vlm", kMalformed, "/mm_tokens_per_image", set("/mm_tokens_per_image", 15));
  refused("gemma3_vlm", kMalformed, "/vision_config/num_attention_heads", set("/vision_config/num_attention_heads", 5));
  refused("gemma3_vlm", StatusCode::kNotFound, "encoder.layers.2", set("/vision_config/num_hidden_layers", 3));
  refused("qwen2_5_vl", kUnsupported, "visual.blocks.2", set("/vision_config/depth", 2));
  refused("qwen2_5_vl", kUnsupported, "/vision_config/rope_parameters/rope_type",
          set("/vision_config/rope_parameters/rope_type", "spiral"));
  refused("qwen2_5_vl", kMalformed, "mrope_section", set("/text_config/rope_parameters/mrope_section", {2, 3, 4}));
  refused("qwen2_5_vl", kMalformed, "mrope_section", set("/text_config/rope_parameters/mrope_section", {8}));
  refused("qwen2_5_vl", kMalformed, "/vision_config/out_hidden_size", set("/vision_config/out_hidden_size", 32));
  refused("qwen2_5_vl", kMalformed, "/vision_config/window_size", set("/vision_config/window_size", 8));
  refused("qwen3_vl", kMalformed, "/deepstack_visual_indexes", set("/vision_config/deepstack_visual_indexes", {0, 3}));
  refused("qwen3_vl", kMalformed, "num_position_embeddings", set("/vision_config/num_position_embeddings", 35));
  refused("qwen3_5_vl", kUnsupported, "/deepstack_visual_indexes", set("/vision_config/deepstack_visual_indexes", {0}));
}

TEST_CASE("a prompt and its images that do not go together are refused") {
  ImageGrid grid;
  grid.rows = 2;
  grid.cols = 3;
  std::vector<PromptImage> images(2);
  for (PromptImage& image : images) image.grid = grid;
  constexpr int32_t kImage = 9;
  std::vector<int32_t> tokens = {1, kImage, 2, kImage, 3};
  REQUIRE(place_images(kImage, tokens, images).ok());
  CHECK(tokens.size() == 15);
  CHECK((images[0].begin == 1 && images[1].begin == 8));
  std::vector<int32_t> again = tokens;
  REQUIRE(place_images(kImage, again, images).ok());
  CHECK(again == tokens);
  CHECK((images[0].begin == 1 && images[1].begin == 8));
  for (std::vector<int32_t> wrong : {std::vector<int32_t>{1, 2}, {kImage, kImage, kImage}, {kImage}}) {
    CHECK(place_images(kImage, wrong, images).place() == "images");
  }
  // As often as there are rows, but not together.
  std::vector<int32_t> apart(12, kImage);
  apart.insert(apart.begin() + 4, 5);
  CHECK(place_images(kImage, apart, images).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("images of other sizes than the model's are refused by size") {
  if (!have_data()) return;
  const ModelHeader header = read_header(source_at(kModels + "llava_clip"));
  const VisionSpec& vision = *header.vision;
  CHECK(image_grid(vision, 32, 32, 3 * 32 * 32).ok());
  for (const auto& [height, width, floats] :
       {std::tuple(32, 24, 3 * 32 * 24), {32, 32, 100}, {0, 32, 0}, {-1, -1, 3}}) {
    const auto grid = image_grid(vision, height, width, static_cast<uint64_t>(floats));
    REQUIRE_FALSE(grid.ok());
    CHECK(grid.status().place() == "image");
  }
}
