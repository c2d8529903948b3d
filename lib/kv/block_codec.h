// How a block's bytes are stored: as they are, or compressed without loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace headrace::kv {

// The numbers stand in files.
enum class BlockCodec : uint32_t { kNone = 0, kZstd = 1 };

constexpr std::string_view codec_name(BlockCodec codec) { return codec == BlockCodec::kZstd ? "zstd" : "none"; }
// Whether this build has it.
bool has_codec(BlockCodec codec);

// `raw` in the codec's form, or nothing where that would not be smaller. zstd at level 1, over the bytes of numbers of
// element_bytes each put into planes: exponents of neighbours are alike, mantissas are noise.
std::optional<std::vector<std::byte>> compress_block(BlockCodec codec, size_t element_bytes,
                                                     std::span<const std::byte> raw);
// Fills `raw`; false where `stored` is not such a form of so many bytes.
bool decompress_block(BlockCodec codec, size_t element_bytes, std::span<const std::byte> stored,
                      std::span<std::byte> raw);

}  // namespace headrace::kv
