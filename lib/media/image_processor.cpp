#include "media/image_processor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace headrace {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSide = 1 << 15;
constexpr int64_t kMaxRatio = 200;  // of an image's sides
constexpr float kClipMean[] = {0.48145466f, 0.4578275f, 0.40821073f};
constexpr float kClipDeviation[] = {0.26862954f, 0.26130258f, 0.27577711f};

// ---- preprocessor_config.json ----

class Reader {
 public:
  explicit Reader(const Json* object) : object_(object) {}

  const Json* find(const char* key) const {
    if (object_ == nullptr) return nullptr;
    const auto it = object_->find(key);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }
  Result<bool> flag(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return malformed(place(key), "not true or false");
    return value->get<bool>();
  }
  Result<int64_t> integer(const char* key, int64_t low, int64_t high, int64_t fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer()) return malformed(place(key), "not an integer");
    const auto number = value->get<int64_t>();
    if (number < low || number > high) return malformed(place(key), "{} is outside [{}, {}]", number, low, high);
    return number;
  }
  Result<double> number(const char* key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) return malformed(place(key), "not a number");
    return value->get<double>();
  }
  // Three numbers, or one for all channels.
  Status channels(const char* key, float (&out)[3]) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    for (size_t i = 0; i < 3; ++i) {
      const Json* item = value->is_array() && value->size() == 3 ? &(*value)[i] : value;
      if (!item->is_number()) return malformed(place(key), "not three numbers");
      out[i] = item->get<float>();
    }
    return {};
  }
  static std::string place(const char* key) { return std::string("preprocessor_config.json/") + key; }

 private:
  const Json* object_;  // null: no key is there
};

enum class Kind { kClip, kSiglip, kGemma3, kQwen };

Result<Kind> read_kind(const Reader& config) {
  const Json* type = config.find("image_processor_type");
  if (type == nullptr) type = config.find("feature_extractor_type");
  if (type == nullptr || !type->is_string()) return malformed(Reader::place("image_processor_type"), "missing");
  std::string name = type->get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name == "CLIPImageProcessor" || name == "CLIPFeatureExtractor") return Kind::kClip;
  if (name == "SiglipImageProcessor") return Kind::kSiglip;
  if (name == "Gemma3ImageProcessor") return Kind::kGemma3;
  if (name == "Qwen2VLImageProcessor") return Kind::kQwen;
  return unsupported(Reader::place("image_processor_type"), "unknown image processor '{}'", name);
}

Status check_keys(const Json& config) {
  constexpr std::string_view kKnown[] = {
      "image_processor_type", "feature_extractor_type", "do_resize", "size", "resample", "do_center_crop", "crop_size",
      "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "do_convert_rgb", "do_pan_and_scan",
      "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate", "min_pixels",
      "max_pixels", "patch_size", "temporal_patch_size", "merge_size",
      // Of how the processor is run or what it belongs to.
      "processor_class", "default_to_square", "device", "return_tensors", "input_data_format", "data_format",
      "disable_grouping", "image_seq_length"};
  for (const auto& item : config.items()) {
    if (item.value().is_null() || std::ranges::find(kKnown, item.key()) != std::end(kKnown)) continue;
    return unsupported(Reader::place(item.key().c_str()), "this key is not known here and may change the result");
  }
  return {};
}

// {"height", "width"}, or one number for both.
Status read_box(const Reader& config, const char* key, int32_t fallback, int32_t& height, int32_t& width) {
  height = width = fallback;
  const Json* value = config.find(key);
  if (value == nullptr) return {};
  const auto side = [&](const Json& number, int32_t& out) -> Status {
    if (!number.is_number_integer() || number.get<int64_t>() < 1 || number.get<int64_t>() > kMaxSide) {
      return malformed(Reader::place(key), "no height and width from 1 to {}", kMaxSide);
    }
    out = number.get<int32_t>();
    return {};
  };
  if (value->is_object() && value->contains("height") && value->contains("width")) {
    HEADRACE_RETURN_IF_ERROR(side((*value)["height"], height));
    return side((*value)["width"], width);
  }
  HEADRACE_RETURN_IF_ERROR(side(*value, height));
  width = height;
  return {};
}

Status read_sizing(const Reader& config, Kind kind, ImageProcessorSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const bool resize, config.flag("do_resize", true));
  const Json* size = config.find("size");
  if (kind == Kind::kQwen) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t patch, config.integer("patch_size", 1, 1 << 10, 14));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t frames, config.integer("temporal_patch_size", 1, 64, 2));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t merge, config.integer("merge_size", 1, 64, 2));
    spec.patch_size = static_cast<int32_t>(patch);
    spec.frames = static_cast<int32_t>(frames);
    spec.merge_size = static_cast<int32_t>(merge);
    if (!resize) return unsupported(Reader::place("do_resize"), "sides must become whole patches");
    spec.sizing = ImageSizing::kPixelBudget;
    const Reader bounds(size != nullptr && size->is_object() ? size : nullptr);
    HEADRACE_ASSIGN_OR_RETURN(const int64_t low, bounds.integer("shortest_edge", 1, int64_t{1} << 40, 56 * 56));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t high, bounds.integer("longest_edge", 1, int64_t{1} << 40, 28 * 28 * 1280));
    HEADRACE_ASSIGN_OR_RETURN(spec.min_pixels, config.integer("min_pixels", 1, int64_t{1} << 40, low));
    HEADRACE_ASSIGN_OR_RETURN(spec.max_pixels, config.integer("max_pixels", spec.min_pixels, int64_t{1} << 40, high));
    return {};
  }
  if (!resize) return {};
  if (size != nullptr && size->is_object() && size->contains("longest_edge")) {
    return unsupported(Reader::place("size"), "longest_edge");
  }
  const bool by_edge = size == nullptr     ? kind == Kind::kClip
                       : size->is_object() ? size->contains("shortest_edge")
                                           : kind == Kind::kClip;
  if (!by_edge) {
    spec.sizing = ImageSizing::kExact;
    return read_box(config, "size", 224, spec.height, spec.width);
  }
  spec.sizing = ImageSizing::kShortestEdge;
  const Json* edge = size != nullptr && size->is_object() ? &(*size)["shortest_edge"] : size;
  if (edge != nullptr && (!edge->is_number_integer() || edge->get<int64_t>() < 1 || edge->get<int64_t>() > kMaxSide)) {
    return malformed(Reader::place("size"), "no shortest_edge from 1 to {}", kMaxSide);
  }
  spec.shortest_edge = edge == nullptr ? 224 : edge->get<int32_t>();
  return {};
}

Status read_values(const Reader& config, Kind kind, ImageProcessorSpec& spec) {
  constexpr int64_t kPilBilinear = 2, kPilBicubic = 3;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t resample,
                            config.integer("resample", 0, 5, kind == Kind::kGemma3 ? kPilBilinear : kPilBicubic));
  if (resample != kPilBilinear && resample != kPilBicubic) {
    return unsupported(Reader::place("resample"), "{} is neither bilinear (2) nor bicubic (3)", resample);
  }
  spec.interpolation = resample == kPilBilinear ? Interpolation::kBilinear : Interpolation::kBicubic;
  HEADRACE_ASSIGN_OR_RETURN(const bool crop, config.flag("do_center_crop", kind == Kind::kClip));
  if (crop) HEADRACE_RETURN_IF_ERROR(read_box(config, "crop_size", 224, spec.crop_height, spec.crop_width));
  HEADRACE_ASSIGN_OR_RETURN(const bool rescale, config.flag("do_rescale", true));
  HEADRACE_ASSIGN_OR_RETURN(const double factor, config.number("rescale_factor", 1.0 / 255.0));
  spec.rescale_factor = rescale ? factor : 1.0;
  HEADRACE_ASSIGN_OR_RETURN(spec.normalize, config.flag("do_normalize", true));
  const bool clip_values = kind == Kind::kClip || kind == Kind::kQwen;
  for (size_t i = 0; i < 3; ++i) {
    spec.mean[i] = clip_values ? kClipMean[i] : 0.5f;
    spec.deviation[i] = clip_values ? kClipDeviation[i] : 0.5f;
  }
  HEADRACE_RETURN_IF_ERROR(config.channels("image_mean", spec.mean));
  HEADRACE_RETURN_IF_ERROR(config.channels("image_std", spec.deviation));
  HEADRACE_ASSIGN_OR_RETURN(const bool pan, config.flag("do_pan_and_scan", false));
  if (pan) return unsupported(Reader::place("do_pan_and_scan"), "crops of one image are images of their own");
  return {};
}

// ---- Images ----

struct Size {
  int32_t height, width;
};

// As Python's round: halves to the even neighbour.
int64_t rounded(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

Result<Size> within_budget(const ImageProcessorSpec& spec, int32_t height, int32_t width) {
  const double factor = spec.patch_size * spec.merge_size;
  const int32_t longer = std::max(height, width), shorter = std::min(height, width);
  if (static_cast<double>(longer) / shorter > static_cast<double>(kMaxRatio)) {
    return invalid_argument("image", "{} x {} pixels: one side is over {} times the other", height, width, kMaxRatio);
  }
  const double area = static_cast<double>(height) * width;
  double rows = static_cast<double>(rounded(height / factor)) * factor;
  double cols = static_cast<double>(rounded(width / factor)) * factor;
  if (rows * cols > static_cast<double>(spec.max_pixels)) {
    const double shrink = std::sqrt(area / static_cast<double>(spec.max_pixels));
    rows = std::max(factor, std::floor(height / shrink / factor) * factor);
    cols = std::max(factor, std::floor(width / shrink / factor) * factor);
  } else if (rows * cols < static_cast<double>(spec.min_pixels)) {
    const double grow = std::sqrt(static_cast<double>(spec.min_pixels) / area);
    rows = std::ceil(height * grow / factor) * factor;
    cols = std::ceil(width * grow / factor) * factor;
  }
  if (rows > static_cast<double>(kMaxSide) || cols > static_cast<double>(kMaxSide)) {
    return invalid_argument("image", "{} x {} pixels would become {} x {}", height, width, rows, cols);
  }
  return Size{static_cast<int32_t>(rows), static_cast<int32_t>(cols)};
}

Result<Size> target_size(const ImageProcessorSpec& spec, int32_t height, int32_t width) {
  switch (spec.sizing) {
    case ImageSizing::kAsIs: break;
    case ImageSizing::kExact: return Size{spec.height, spec.width};
    case ImageSizing::kPixelBudget: return within_budget(spec, height, width);
    case ImageSizing::kShortestEdge: {
      const int32_t shorter = std::min(height, width), longer = std::max(height, width);
      const auto stretched = static_cast<int64_t>(static_cast<double>(int64_t{spec.shortest_edge} * longer) / shorter);
      if (stretched > kMaxSide) {
        return invalid_argument("image", "{} x {} pixels would become {} long", height, width, stretched);
      }
      const auto other = static_cast<int32_t>(stretched);
      return width <= height ? Size{other, spec.shortest_edge} : Size{spec.shortest_edge, other};
    }
  }
  return Size{height, width};
}

int32_t floor_half(int32_t x) { return x >= 0 ? x / 2 : (x - 1) / 2; }

// Zeros stand where the image does not reach.
RgbImage cropped(const RgbImage& image, int32_t height, int32_t width) {
  RgbImage out{height, width, std::vector<uint8_t>(static_cast<size_t>(int64_t{height} * width * 3))};
  // A smaller image is padded by the larger half before, as is what is cut from a larger one.
  const int32_t top = floor_half(image.height - height), left = floor_half(image.width - width);
  for (int32_t row = std::max(0, -top); row < std::min(height, image.height - top); ++row) {
    const int32_t first = std::max(0, -left), end = std::min(width, image.width - left);
    if (first >= end) continue;
    const auto from = (int64_t{row + top} * image.width + first + left) * 3;
    std::copy_n(image.pixels.begin() + from, int64_t{end - first} * 3,
                out.pixels.begin() + (int64_t{row} * width + first) * 3);
  }
  return out;
}

// What each byte becomes, by channel.
std::array<std::array<float, 256>, 3> value_table(const ImageProcessorSpec& spec) {
  std::array<std::array<float, 256>, 3> out;
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto scaled = static_cast<float>(static_cast<double>(byte) * spec.rescale_factor);
      out[channel][byte] = spec.normalize ? (scaled - spec.mean[channel]) / spec.deviation[channel] : scaled;
    }
  }
  return out;
}

}  // namespace

Result<ImageProcessorSpec> read_image_processor(const Json& config) {
  if (!config.is_object()) return malformed("preprocessor_config.json", "is no JSON object");
  const Reader reader(&config);
  ImageProcessorSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const Kind kind, read_kind(reader));
  HEADRACE_RETURN_IF_ERROR(check_keys(config));
  HEADRACE_RETURN_IF_ERROR(read_sizing(reader, kind, spec));
  HEADRACE_RETURN_IF_ERROR(read_values(reader, kind, spec));
  return spec;
}

Result<ProcessedImage> process_image(const ImageProcessorSpec& spec, const RgbImage& image) {
  if (image.height < 1 || image.width < 1 || image.height > kMaxSide || image.width > kMaxSide) {
    return invalid_argument("image", "{} x {} pixels are no image of sides from 1 to {}", image.height, image.width,
                            kMaxSide);
  }
  if (image.pixels.size() != static_cast<size_t>(int64_t{image.height} * image.width * 3)) {
    return invalid_argument("image", "{} bytes for {} x {} pixels of 3", image.pixels.size(), image.height,
                            image.width);
  }
  HEADRACE_ASSIGN_OR_RETURN(const Size size, target_size(spec, image.height, image.width));
  RgbImage sized = resized(image, size.height, size.width, spec.interpolation);
  if (spec.crop_height > 0) sized = cropped(sized, spec.crop_height, spec.crop_width);
  const auto values = value_table(spec);
  const auto value = [&](int32_t channel, int32_t row, int32_t col) {
    return values[static_cast<size_t>(channel)]
                 [sized.pixels[static_cast<size_t>((int64_t{row} * sized.width + col) * 3 + channel)]];
  };
  ProcessedImage out;
  if (spec.patch_size == 0) {
    out.height = sized.height;
    out.width = sized.width;
    out.pixels.reserve(sized.pixels.size());
    for (int32_t channel = 0; channel < 3; ++channel) {
      for (int32_t row = 0; row < sized.height; ++row) {
        for (int32_t col = 0; col < sized.width; ++col) out.pixels.push_back(value(channel, row, col));
      }
    }
    return out;
  }
  const int32_t patch = spec.patch_size, merge = spec.merge_size;
  out.height = sized.height / patch;
  out.width = sized.width / patch;
  out.pixels.reserve(sized.pixels.size() * static_cast<size_t>(spec.frames));
  for (int32_t square = 0; square < out.height / merge * (out.width / merge); ++square) {
    for (int32_t i = 0; i < merge * merge; ++i) {
      const int32_t top = (square / (out.width / merge) * merge + i / merge) * patch;
      const int32_t left = (square % (out.width / merge) * merge + i % merge) * patch;
      for (int32_t plane = 0; plane < 3 * spec.frames; ++plane) {
        for (int32_t at = 0; at < patch * patch; ++at) {
          out.pixels.push_back(value(plane / spec.frames, top + at / patch, left + at % patch));
        }
      }
    }
  }
  return out;
}

}  // namespace headrace
