// From an image's bytes to the pixel values that a vision encoder takes: resized, cut, scaled, normalised, and for some
// encoders put in order of patches. What transformers' image processors do with Pillow (those named ...Pil).
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "media/image_resize.h"

namespace headrace {

enum class ImageSizing : int32_t {
  kAsIs,
  kExact,         // height and width
  kShortestEdge,  // the shorter side becomes `shortest_edge`, the ratio of sides stays
  kPixelBudget,   // sides become multiples of patch_size * merge_size, with min_pixels to max_pixels in all
};

struct ImageProcessorSpec {
  ImageSizing sizing = ImageSizing::kAsIs;
  int32_t height = 0, width = 0;  // kExact
  int32_t shortest_edge = 0;
  int64_t min_pixels = 0, max_pixels = 0;
  Interpolation interpolation = Interpolation::kBicubic;
  int32_t crop_height = 0, crop_width = 0;  // around the center, zeros where there is no image; 0: not
  double rescale_factor = 1.0;
  bool normalize = false;
  float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};
  int32_t patch_size = 0;  // 0: the result is planes
  int32_t frames = 1;      // of a patch, which hold the same image
  int32_t merge_size = 1;  // patches of squares so many wide lie side by side
};

// Reads preprocessor_config.json of CLIPImageProcessor, SiglipImageProcessor, Gemma3ImageProcessor and
// Qwen2VLImageProcessor (each with and without "Fast"); absent keys are as the class has them. kUnsupported with the key as
// place for another class, for keys that are not known and for values that are not built.
Result<ImageProcessorSpec> read_image_processor(const nlohmann::json& config);

struct ProcessedImage {
  std::vector<float> pixels;      // [3, height, width], or [height * width patches, 3 * frames * patch_size^2]
  int32_t height = 0, width = 0;  // pixels, or patches
};

// kInvalidArgument ("image") for an empty image, bytes that are not 3 * height * width, and sides whose ratio is over 200
// where there is a budget.
Result<ProcessedImage> process_image(const ImageProcessorSpec& spec, const RgbImage& image);

}  // namespace headrace
