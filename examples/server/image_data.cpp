#include "image_data.h"

#include <array>
#include <string>

#include "api_error.h"

#ifdef HEADRACE_SERVER_IMAGES
#include <png.h>
#include <turbojpeg.h>
#endif

namespace server {
namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int sextet(char c) {
  static const std::array<int8_t, 256> values = [] {
    std::array<int8_t, 256> table;
    table.fill(-1);
    for (int i = 0; i < 64; ++i) table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
    return table;
  }();
  return values[static_cast<unsigned char>(c)];
}

#ifdef HEADRACE_SERVER_IMAGES

void require_size(uint64_t width, uint64_t height, uint64_t max_pixels, const std::string& place) {
  if (width * height <= max_pixels) return;
  throw ApiError(400,
                 "the images of a request have more than " + std::to_string(kMaxPixels / 1'000'000) +
                     " million pixels together, or this one by itself",
                 place);
}

RgbImage decode_png(const std::string& bytes, uint64_t max_pixels, const std::string& place) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  const auto fail = [&] {
    const std::string message = image.message;
    png_image_free(&image);
    throw ApiError(400, "is no PNG image: " + message, place);
  };
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) fail();
  try {
    require_size(image.width, image.height, max_pixels, place);
  } catch (const ApiError&) {
    png_image_free(&image);
    throw;
  }
  image.format = PNG_FORMAT_RGBA;  // so that nothing is blended: alpha is dropped
  std::vector<uint8_t> rgba(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, rgba.data(), 0, nullptr)) fail();
  RgbImage out{{}, image.height, image.width};
  out.rgb.reserve(rgba.size() / 4 * 3);
  for (size_t i = 0; i < rgba.size(); i += 4) out.rgb.insert(out.rgb.end(), {rgba[i], rgba[i + 1], rgba[i + 2]});
  return out;
}

RgbImage decode_jpeg(const std::string& bytes, uint64_t max_pixels, const std::string& place) {
  struct Decoder {
    tjhandle handle = tjInitDecompress();
    ~Decoder() {
      if (handle != nullptr) tjDestroy(handle);
    }
  } decoder;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, color_space = 0;
  const auto fail = [&] {
    throw ApiError(400, "is no JPEG image: " + std::string(tjGetErrorStr2(decoder.handle)), place);
  };
  if (tjDecompressHeader3(decoder.handle, data, bytes.size(), &width, &height, &subsampling, &color_space) != 0) fail();
  require_size(static_cast<uint64_t>(width), static_cast<uint64_t>(height), max_pixels, place);
  RgbImage out{{}, static_cast<uint32_t>(height), static_cast<uint32_t>(width)};
  out.rgb.resize(size_t{3} * out.width * out.height);
  if (tjDecompress2(decoder.handle, data, bytes.size(), out.rgb.data(), width, 0, height, TJPF_RGB,
                    TJFLAG_ACCURATEDCT) != 0) {
    fail();
  }
  return out;
}

#endif

}  // namespace

bool decode_base64(std::string_view text, std::string& bytes) {
  if (text.size() % 4 != 0) return false;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  bytes.clear();
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = sextet(c);
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return true;
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j)
      bits = bits << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    for (int shift = 18; shift >= 0; shift -= 6) text += kAlphabet[bits >> shift & 63];
  }
  const size_t missing = (3 - bytes.size() % 3) % 3;
  text.replace(text.size() - missing, missing, missing, '=');
  return text;
}

RgbImage decode_image_url(const std::string& url, const std::string& place, uint64_t max_pixels) {
  constexpr std::string_view kBase64 = ";base64,";
  const size_t at = url.find(kBase64);
  if (!url.starts_with("data:") || at == std::string::npos) {
    throw ApiError(400, "must be a \"data:\" URL in base64: the server fetches nothing", place);
  }
  return decode_image(std::string_view(url).substr(at + kBase64.size()), place, max_pixels);
}

RgbImage decode_image(std::string_view base64, const std::string& place, [[maybe_unused]] uint64_t max_pixels) {
  std::string bytes;
  if (!decode_base64(base64, bytes)) throw ApiError(400, "is not base64", place);
#ifdef HEADRACE_SERVER_IMAGES
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, max_pixels, place);
  if (bytes.starts_with("\xFF\xD8")) return decode_jpeg(bytes, max_pixels, place);
  throw ApiError(400, "is neither PNG nor JPEG", place);
#else
  throw ApiError(400, "this build reads no images: libpng and libturbojpeg were not found", place, "unsupported");
#endif
}

}  // namespace server
