// Resizing of 8-bit images with antialiasing, as Pillow up to 12 does it (Image.resize): along rows first, each pass rounded
// to 8 bits. Pillow 13 goes down columns first for some sizes, whose pixels then differ by a level here and there.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

// [height, width, 3], channels side by side.
struct RgbImage {
  int32_t height = 0, width = 0;
  std::vector<uint8_t> pixels;
};

enum class Interpolation : int32_t { kBilinear, kBicubic };

// Both sizes of both images at least 1.
RgbImage resized(const RgbImage& image, int32_t height, int32_t width, Interpolation interpolation);

}  // namespace headrace
