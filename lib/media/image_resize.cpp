#include "media/image_resize.h"

#include <algorithm>
#include <cmath>

namespace headrace {

namespace {

constexpr int32_t kChannels = 3;
constexpr int kFractionBits = 22;  // of a weight: 32 bits less 8 of the pixel and 2 of room

double triangle(double x) { return std::max(0.0, 1.0 - std::fabs(x)); }

// Keys' cubic convolution with a = -0.5.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

// The pixels of the input that one of the output is a sum of.
struct Taps {
  int32_t first = 0;
  std::vector<int32_t> weights;  // fractions of 2^22
};

// Shrinking widens the filter, so that every pixel of the input counts.
std::vector<Taps> make_taps(int32_t in_size, int32_t out_size, Interpolation interpolation) {
  const bool bicubic = interpolation == Interpolation::kBicubic;
  const double scale = static_cast<double>(in_size) / out_size, stretch = std::max(scale, 1.0);
  const double support = (bicubic ? 2.0 : 1.0) * stretch, inverse = 1.0 / stretch;
  std::vector<Taps> out(static_cast<size_t>(out_size));
  std::vector<double> weights;
  for (int32_t i = 0; i < out_size; ++i) {
    const double center = (i + 0.5) * scale;
    const int32_t first = std::max(static_cast<int32_t>(center - support + 0.5), 0);
    const int32_t end = std::min(static_cast<int32_t>(center + support + 0.5), in_size);
    weights.clear();
    double sum = 0.0;
    for (int32_t j = first; j < end; ++j) {
      const double x = (j - center + 0.5) * inverse;
      weights.push_back(bicubic ? cubic(x) : triangle(x));
      sum += weights.back();
    }
    Taps& taps = out[static_cast<size_t>(i)];
    taps.first = first;
    for (const double weight : weights) {
      const double share = (sum != 0.0 ? weight / sum : weight) * (1 << kFractionBits);
      taps.weights.push_back(static_cast<int32_t>(share < 0.0 ? share - 0.5 : share + 0.5));
    }
  }
  return out;
}

uint8_t rounded(int64_t sum) { return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kFractionBits, 0, 255)); }

// One axis: out[i] = sum of in[first + k] weights[k], with `stride` bytes between neighbours of the axis.
void resample_line(const uint8_t* in, const std::vector<Taps>& taps, int64_t stride, uint8_t* out) {
  for (size_t i = 0; i < taps.size(); ++i) {
    int64_t sum = int64_t{1} << (kFractionBits - 1);
    const uint8_t* from = in + taps[i].first * stride;
    for (const int32_t weight : taps[i].weights) {
      sum += int64_t{*from} * weight;
      from += stride;
    }
    out[static_cast<int64_t>(i) * stride] = rounded(sum);
  }
}

RgbImage with_width(const RgbImage& image, int32_t width, Interpolation interpolation) {
  RgbImage out{image.height, width,
               std::vector<uint8_t>(static_cast<size_t>(int64_t{image.height} * width * kChannels))};
  const std::vector<Taps> taps = make_taps(image.width, width, interpolation);
  for (int64_t row = 0; row < image.height; ++row) {
    for (int32_t channel = 0; channel < kChannels; ++channel) {
      resample_line(image.pixels.data() + row * image.width * kChannels + channel, taps, kChannels,
                    out.pixels.data() + row * width * kChannels + channel);
    }
  }
  return out;
}

RgbImage with_height(const RgbImage& image, int32_t height, Interpolation interpolation) {
  RgbImage out{height, image.width,
               std::vector<uint8_t>(static_cast<size_t>(int64_t{height} * image.width * kChannels))};
  const std::vector<Taps> taps = make_taps(image.height, height, interpolation);
  const int64_t line = int64_t{image.width} * kChannels;
  for (int64_t at = 0; at < line; ++at) {
    resample_line(image.pixels.data() + at, taps, line, out.pixels.data() + at);
  }
  return out;
}

}  // namespace

RgbImage resized(const RgbImage& image, int32_t height, int32_t width, Interpolation interpolation) {
  RgbImage out = image;
  if (width != out.width) out = with_width(out, width, interpolation);
  if (height != out.height) out = with_height(out, height, interpolation);
  return out;
}

}  // namespace headrace
