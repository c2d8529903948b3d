#include "engine/image_reader.h"

#include <algorithm>
#include <cmath>

namespace headrace::engine {

Result<std::shared_ptr<const RequestImage>> make_request_image(const ImageReader& reader, std::span<const float> pixels,
                                                               int64_t height, int64_t width) {
  auto image = std::make_shared<RequestImage>();
  HEADRACE_ASSIGN_OR_RETURN(image->grid, image_grid(reader.vision(), height, width, pixels.size()));
  const auto bad = std::ranges::find_if(pixels, [](float value) { return !std::isfinite(value); });
  if (bad != pixels.end()) return invalid_argument("image", "value {} is not finite", bad - pixels.begin());
  image->pixels.assign(pixels.begin(), pixels.end());
  const Hash128 values = hash128(pixels.data(), pixels.size_bytes());
  const uint64_t key[] = {values.high, values.low, static_cast<uint64_t>(height), static_cast<uint64_t>(width)};
  image->content = hash128(key, sizeof key);
  return std::shared_ptr<const RequestImage>(std::move(image));
}

Result<std::shared_ptr<const RequestImage>> make_request_image(const ImageReader& reader, const RgbImage& image) {
  HEADRACE_RETURN_IF_ERROR(reader.processor().status());
  HEADRACE_ASSIGN_OR_RETURN(const ProcessedImage processed, process_image(*reader.processor(), image));
  return make_request_image(reader, processed.pixels, processed.height, processed.width);
}

int32_t shown_token(const ImageReader* reader, int32_t id) { return id < 0 ? reader->vision().image_token_id : id; }

Status place_request_images(const ImageReader& reader, KvCache& kv_cache,
                            std::span<const std::shared_ptr<const RequestImage>> images, int64_t first,
                            std::vector<int32_t>& tokens, std::vector<PlacedImage>& placed) {
  std::vector<PromptImage> places;
  for (const auto& image : images) places.push_back({0, image->grid, nullptr});
  HEADRACE_RETURN_IF_ERROR(place_images(reader.vision().image_token_id, tokens, places));
  for (size_t i = 0; i < places.size(); ++i) {
    const int32_t id = kv_cache.content_id(images[i]->content);
    std::fill(tokens.begin() + places[i].begin, tokens.begin() + places[i].end(), id);
    placed.push_back({images[i], first + places[i].begin});
  }
  return {};
}

}  // namespace headrace::engine
