// Images as they come in requests: base64, PNG or JPEG.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace server {

// rgb [height, width, 3]
struct RgbImage {
  std::vector<uint8_t> rgb;
  uint32_t height = 0, width = 0;
};

// False for characters outside base64's alphabet and for a wrong length.
bool decode_base64(std::string_view text, std::string& bytes);
std::string encode_base64(std::string_view bytes);

// The pixels that the images of one request may have together.
constexpr uint64_t kMaxPixels = 64'000'000;

// place: of the text in the body. Throw ApiError (400) for what is no such image, for one of more than `max_pixels`, before it
// is decoded, and for other URLs than "data:": the server fetches nothing. A build without libpng and libjpeg refuses every
// image.
RgbImage decode_image_url(const std::string& url, const std::string& place, uint64_t max_pixels = kMaxPixels);
RgbImage decode_image(std::string_view base64, const std::string& place, uint64_t max_pixels = kMaxPixels);

}  // namespace server
