// Image preprocessing against transformers' image processors (tests/data/generate_images.py), and what is refused.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

#include "formats/safetensors.h"
#include "media/image_processor.h"

using namespace headrace;

namespace {

using Json = nlohmann::json;

const std::string kFolder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/images/";

RgbImage make_image(int32_t height, int32_t width) {
  RgbImage image{height, width, {}};
  for (int32_t y = 0; y < height; ++y) {
    for (int32_t x = 0; x < width; ++x) {
      for (int32_t c = 0; c < 3; ++c) {
        const int32_t value = x * 7 + y * 13 + c * 29 + x * y % 31 * 5 + (x / 9 + y / 7) % 2 * 90;
        image.pixels.push_back(static_cast<uint8_t>(value % 256));
      }
    }
  }
  return image;
}

Json read_cases() {
  std::ifstream file(kFolder + "cases.json");
  REQUIRE(file.good());
  return Json::parse(file);
}

}  // namespace

TEST_CASE("images become the pixel values of transformers' processors, bit for bit") {
  const Json cases = read_cases();
  auto file = SafetensorsFile::open_path(kFolder + "pixels.safetensors");
  REQUIRE(file.ok());
  REQUIRE(cases.size() >= 7);
  for (const auto& item : cases.items()) {
    INFO(item.key());
    const Json& each = item.value();
    const auto spec = read_image_processor(each["config"]);
    INFO(spec.status().to_string());
    REQUIRE(spec.ok());
    const auto got = process_image(*spec, make_image(each["height"].get<int32_t>(), each["width"].get<int32_t>()));
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK(got->height == each["out"][0].get<int32_t>());
    CHECK(got->width == each["out"][1].get<int32_t>());
    const TensorEntry* entry = (*file)->find(item.key());
    REQUIRE(entry != nullptr);
    std::vector<float> expected(entry->bytes / sizeof(float));
    REQUIRE((*file)->read(*entry, 0, std::as_writable_bytes(std::span(expected))).ok());
    CHECK(got->pixels == expected);
  }
}

TEST_CASE("an image of its own size is not resampled") {
  const RgbImage image = make_image(9, 12);
  CHECK(resized(image, 9, 12, Interpolation::kBicubic).pixels == image.pixels);
  const RgbImage flat{5, 7, std::vector<uint8_t>(5 * 7 * 3, 200)};
  for (const Interpolation kind : {Interpolation::kBilinear, Interpolation::kBicubic}) {
    for (const uint8_t value : resized(flat, 31, 2, kind).pixels) REQUIRE(value == 200);
  }
}

TEST_CASE("configs of image processors that are not built are refused by key") {
  const Json good = read_cases()["siglip"]["config"];
  REQUIRE(read_image_processor(good).ok());
  const auto refused = [&](const char* key, const Json& value, StatusCode code) {
    Json config = good;
    config[key] = value;
    const auto spec = read_image_processor(config);
    INFO(key << ": " << spec.status().to_string());
    REQUIRE_FALSE(spec.ok());
    CHECK(spec.status().code() == code);
    CHECK(spec.status().place() == std::string("preprocessor_config.json/") + key);
  };
  refused("do_twist", true, StatusCode::kUnsupported);
  refused("resample", 1, StatusCode::kUnsupported);
  refused("resample", "bicubic", StatusCode::kMalformed);
  refused("size", {{"height", 0}, {"width", 3}}, StatusCode::kMalformed);
  refused("size", {{"longest_edge", 30}}, StatusCode::kUnsupported);
  refused("image_mean", {0.5, 0.5}, StatusCode::kMalformed);
  refused("do_resize", 1, StatusCode::kMalformed);
  refused("do_pan_and_scan", true, StatusCode::kUnsupported);
  refused("image_processor_type", "FlavaImageProcessor", StatusCode::kUnsupported);
  refused("image_processor_type", nullptr, StatusCode::kMalformed);
  CHECK(read_image_processor(Json::array()).status().code() == StatusCode::kMalformed);
}

TEST_CASE("what is no image is refused") {
  ImageProcessorSpec spec;
  for (const RgbImage& image :
       {RgbImage{0, 4, {}}, RgbImage{2, 2, std::vector<uint8_t>(11)}, RgbImage{1 << 16, 1, {}}}) {
    const auto result = process_image(spec, image);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().place() == "image");
  }
  spec.sizing = ImageSizing::kPixelBudget;
  spec.patch_size = 2;
  spec.min_pixels = 4;
  spec.max_pixels = 4096;
  CHECK(process_image(spec, make_image(1, 201)).status().code() == StatusCode::kInvalidArgument);
  CHECK(process_image(spec, make_image(1, 200)).ok());
}
