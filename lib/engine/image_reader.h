// What the engine needs of a model that reads images.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "kv/kv_cache.h"
#include "media/image_processor.h"
#include "model/prompt_images.h"

namespace headrace::engine {

// An image as a request holds it: its pixel values as the model's encoder takes them. Immutable.
struct RequestImage {
  std::vector<float> pixels;
  ImageGrid grid;
  Hash128 content;  // of pixels and sizes: what cached keys and values of its rows depend on
};

// An image of a sequence, from its position `begin` on.
struct PlacedImage {
  std::shared_ptr<const RequestImage> image;
  int64_t begin = 0;
  int64_t end() const { return begin + image->grid.num_tokens(); }
};

// Thread rule: encode may be called from any thread; calls take turns with the model's forward passes.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual const VisionSpec& vision() const = 0;
  virtual const ModelSpec& decoder() const = 0;
  virtual const Result<ImageProcessorSpec>& processor() const = 0;
  // As VisionEncoder::encode.
  virtual Status encode(const RequestImage& image, std::vector<float>& rows) = 0;
};

// The token that a position of a sequence shows, of an image the model's token for images.
int32_t shown_token(const ImageReader* reader, int32_t id);

// pixels, height and width as image_grid() has them; kInvalidArgument ("image") where they do not fit the model, or values
// are not finite.
Result<std::shared_ptr<const RequestImage>> make_request_image(const ImageReader& reader, std::span<const float> pixels,
                                                               int64_t height, int64_t width);
// The same from bytes, as the model's files have them processed; the reason where they cannot be.
Result<std::shared_ptr<const RequestImage>> make_request_image(const ImageReader& reader, const RgbImage& image);

// Gives images of these contents their places in `tokens`, positions [first, ...) of a prompt: each image's token becomes a number
// for each of its rows, by which the cache tells contents apart. They are added to `placed`. Fails as model/prompt_images.h.
Status place_request_images(const ImageReader& reader, KvCache& kv_cache,
                            std::span<const std::shared_ptr<const RequestImage>> images, int64_t first,
                            std::vector<int32_t>& tokens, std::vector<PlacedImage>& placed);

}  // namespace headrace::engine
