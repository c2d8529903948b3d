#include "kv/block_codec.h"

#include <algorithm>

#ifdef HEADRACE_HAVE_ZSTD
#include <zstd.h>
#endif

namespace headrace::kv {
namespace {

// Byte p of every element side by side; a tail that is no whole element stays as it is.
void split_planes(size_t element_bytes, std::span<const std::byte> raw, std::span<std::byte> planes) {
  const size_t count = raw.size() / element_bytes;
  for (size_t plane = 0; plane < element_bytes; ++plane) {
    for (size_t i = 0; i < count; ++i) planes[plane * count + i] = raw[i * element_bytes + plane];
  }
  std::ranges::copy(raw.subspan(count * element_bytes), planes.begin() + static_cast<ptrdiff_t>(count * element_bytes));
}

void join_planes(size_t element_bytes, std::span<const std::byte> planes, std::span<std::byte> raw) {
  const size_t count = raw.size() / element_bytes;
  for (size_t plane = 0; plane < element_bytes; ++plane) {
    for (size_t i = 0; i < count; ++i) raw[i * element_bytes + plane] = planes[plane * count + i];
  }
  std::ranges::copy(planes.subspan(count * element_bytes), raw.begin() + static_cast<ptrdiff_t>(count * element_bytes));
}

}  // namespace

#ifdef HEADRACE_HAVE_ZSTD

bool has_codec(BlockCodec) { return true; }

std::optional<std::vector<std::byte>> compress_block(BlockCodec codec, size_t element_bytes,
                                                     std::span<const std::byte> raw) {
  if (codec == BlockCodec::kNone || raw.empty()) return std::nullopt;
  std::vector<std::byte> planes(raw.size());
  split_planes(element_bytes, raw, planes);
  std::vector<std::byte> stored(ZSTD_compressBound(raw.size()));
  const size_t size = ZSTD_compress(stored.data(), stored.size(), planes.data(), planes.size(), 1);
  if (ZSTD_isError(size) != 0 || size >= raw.size()) return std::nullopt;
  stored.resize(size);
  return stored;
}

bool decompress_block(BlockCodec codec, size_t element_bytes, std::span<const std::byte> stored,
                      std::span<std::byte> raw) {
  if (codec == BlockCodec::kNone) {
    if (stored.size() != raw.size()) return false;
    std::ranges::copy(stored, raw.begin());
    return true;
  }
  if (codec != BlockCodec::kZstd) return false;
  std::vector<std::byte> planes(raw.size());
  if (ZSTD_decompress(planes.data(), planes.size(), stored.data(), stored.size()) != raw.size()) return false;
  join_planes(element_bytes, planes, raw);
  return true;
}

#else

bool has_codec(BlockCodec codec) { return codec == BlockCodec::kNone; }

std::optional<std::vector<std::byte>> compress_block(BlockCodec, size_t, std::span<const std::byte>) {
  return std::nullopt;
}

bool decompress_block(BlockCodec codec, size_t, std::span<const std::byte> stored, std::span<std::byte> raw) {
  if (codec != BlockCodec::kNone || stored.size() != raw.size()) return false;
  std::ranges::copy(stored, raw.begin());
  return true;
}

#endif

}  // namespace headrace::kv
