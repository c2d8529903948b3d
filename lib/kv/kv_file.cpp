#include "kv/kv_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "base/checked.h"
#include "kv/raw_bytes.h"

namespace headrace::kv {
namespace {

constexpr char kMagic[8] = {'H', 'R', 'K', 'V', 'S', 'E', 'Q', '\n'};
constexpr uint64_t kPreludeBytes = 72;
constexpr uint64_t kHashedPreludeBytes = 64;
constexpr uint64_t kLayerBytes = 8;
constexpr uint64_t kChecksumBytes = 8;
constexpr size_t kReadBytes = 128 * 1024;

class Hasher {
 public:
  Hasher() {
    XXH3_INITSTATE(&state_);
    XXH3_64bits_reset(&state_);
  }
  void update(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_, bytes.data(), bytes.size()); }
  uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

// Bytes of the whole file, or nothing when they overflow.
std::optional<uint64_t> file_bytes(const std::vector<KvLayout>& layers, uint64_t num_tokens, uint64_t state_bytes) {
  uint64_t block_bytes = 0;
  for (const KvLayout& layout : layers) {
    const auto sum = checked_add<uint64_t>(block_bytes, layout.block_bytes());
    if (!sum) return std::nullopt;
    block_bytes = *sum;
  }
  const auto block_size = static_cast<uint64_t>(layers[0].block_size);
  const uint64_t num_blocks = num_tokens / block_size + (num_tokens % block_size != 0 ? 1 : 0);
  const auto payload = checked_mul<uint64_t>(num_blocks, block_bytes);
  const auto tokens = checked_mul<uint64_t>(num_tokens, 4);
  if (!payload || !tokens) return std::nullopt;
  const auto values = checked_add<uint64_t>(*payload, num_tokens == 0 ? 0 : state_bytes);
  const auto body = values ? checked_add<uint64_t>(*values, *tokens) : values;
  return body ? checked_add<uint64_t>(*body, kPreludeBytes + kLayerBytes * layers.size() + kChecksumBytes) : body;
}

std::optional<std::vector<std::byte>> make_buffer(size_t size) {
  try {
    return std::vector<std::byte>(size);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace

int32_t used_rows(const KvLayout& layout, int64_t first_token, int64_t used_tokens) {
  return static_cast<int32_t>((first_token % layout.tokens_per_row + used_tokens) / layout.tokens_per_row);
}

void zero_block_tail(const KvLayout& layout, std::span<std::byte> block, int32_t used) {
  const auto block_size = static_cast<size_t>(layout.rows_per_block());
  const auto first = static_cast<size_t>(used);
  // Keys: rows of 16 tokens side by side; values: the rest of the rows. Codes and scales differ in element
  // and count.
  const auto zero_keys = [&](std::byte* keys, size_t element, size_t rows) {
    for (size_t token = first; token < block_size; ++token) {
      for (size_t row = 0; row < rows; ++row) {
        const size_t at = (token / kKvTile * rows + row) * kKvTile + token % kKvTile;
        std::memset(keys + at * element, 0, element);
      }
    }
  };
  const auto zero_values = [&](std::byte* values, size_t element, size_t columns) {
    std::memset(values + first * columns * element, 0, (block_size - first) * columns * element);
  };
  const auto head_dim = static_cast<size_t>(layout.head_dim);
  const bool scaled = layout.dtype == KvDType::kQ8;
  const auto groups = static_cast<size_t>(layout.scale_groups());
  for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
    std::byte* keys = block.data() + static_cast<size_t>(head) * layout.head_bytes();
    std::byte* values = keys + layout.values_offset();
    if (layout.has_keys()) {
      zero_keys(keys, layout.element_bytes(), head_dim);
      if (scaled) zero_keys(keys + layout.code_bytes(), 2, groups);
    }
    if (layout.has_values()) {
      zero_values(values, layout.element_bytes(), head_dim);
      if (scaled) zero_values(values + layout.code_bytes(), 2, groups);
    }
  }
}

Status write_kv_file(const std::vector<KvLayout>& layers, const Hash128& identity, std::span<const int32_t> token_ids,
                     const KvFileBlock& block, std::span<const std::byte> state, const KvFileWrite& write) {
  const KvLayout& first = layers[0];
  const uint64_t num_tokens = token_ids.size();
  const auto total = file_bytes(layers, num_tokens, state.size());
  if (!total || state.size() / sizeof(float) > std::numeric_limits<uint32_t>::max())
    return invalid_argument("kv file", "{} tokens overflow the size of a file", num_tokens);

  std::array<std::byte, kPreludeBytes> prelude = {};
  std::memcpy(prelude.data(), kMagic, sizeof(kMagic));
  put<uint32_t>(&prelude[8], kKvFileVersion);
  put<uint32_t>(&prelude[12], kKvLayoutVersion);
  put<uint64_t>(&prelude[16], identity.low);
  put<uint64_t>(&prelude[24], identity.high);
  put<uint32_t>(&prelude[32], static_cast<uint32_t>(layers.size()));
  put<uint32_t>(&prelude[36], static_cast<uint32_t>(first.block_size));
  put<uint32_t>(&prelude[40], static_cast<uint32_t>(first.dtype));
  put<uint32_t>(&prelude[44], static_cast<uint32_t>(state.size() / sizeof(float)));
  put<uint64_t>(&prelude[48], num_tokens);
  put<uint64_t>(&prelude[56], *total);
  put<uint64_t>(&prelude[64], hash64(prelude.data(), kHashedPreludeBytes));

  Hasher hasher;
  const auto emit = [&](std::span<const std::byte> bytes) {
    hasher.update(bytes);
    return write(bytes);
  };
  HEADRACE_RETURN_IF_ERROR(emit(prelude));
  for (const KvLayout& layout : layers) {
    std::array<std::byte, kLayerBytes> entry;
    put<uint32_t>(&entry[0], static_cast<uint32_t>(layout.num_kv_heads));
    put<uint32_t>(&entry[4], static_cast<uint32_t>(layout.head_dim));
    HEADRACE_RETURN_IF_ERROR(emit(entry));
  }
  HEADRACE_RETURN_IF_ERROR(emit(std::as_bytes(token_ids)));

  const auto block_size = static_cast<uint64_t>(first.block_size);
  for (uint64_t start = 0; start < num_tokens; start += block_size) {
    const auto used = static_cast<int32_t>(std::min(block_size, num_tokens - start));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const std::span<const std::byte> bytes = block(static_cast<int64_t>(start / block_size), layer);
      if (bytes.empty()) continue;  // a layer without attention
      const int32_t rows = used_rows(layers[layer], static_cast<int64_t>(start), used);
      if (rows == layers[layer].rows_per_block()) {
        HEADRACE_RETURN_IF_ERROR(emit(bytes));
        continue;
      }
      // What lies past the last row was left there by other sequences, and is none of the file's business.
      auto copy = make_buffer(bytes.size());
      if (!copy) return out_of_memory("kv file", "no memory for a block of {} bytes", bytes.size());
      std::ranges::copy(bytes, copy->begin());
      zero_block_tail(layers[layer], *copy, rows);
      HEADRACE_RETURN_IF_ERROR(emit(*copy));
    }
  }
  if (num_tokens > 0 && !state.empty()) HEADRACE_RETURN_IF_ERROR(emit(state));
  std::array<std::byte, kChecksumBytes> checksum;
  put<uint64_t>(checksum.data(), hasher.digest());
  return write(checksum);
}

Result<KvFileReader> KvFileReader::open(ByteSource& source, const std::vector<KvLayout>& layers,
                                        const Hash128& identity, uint64_t state_bytes) {
  const std::string& name = source.name();
  if (source.size() < kPreludeBytes + kChecksumBytes) {
    return malformed(name, "{} bytes are too few for a KV file", source.size());
  }
  std::array<std::byte, kPreludeBytes> prelude;
  HEADRACE_RETURN_IF_ERROR(source.read(0, prelude));
  if (std::memcmp(prelude.data(), kMagic, sizeof(kMagic)) != 0) return malformed(name, "is not a KV file");
  if (get<uint64_t>(&prelude[64]) != hash64(prelude.data(), kHashedPreludeBytes)) {
    return malformed(name, "the header's checksum is wrong");
  }
  // The prelude is whole, so a difference from here on is another file and no damage, until the body says
  // otherwise.
  if (get<uint64_t>(&prelude[56]) != source.size()) {
    return malformed(name, "there are {} bytes, the header says {}", source.size(), get<uint64_t>(&prelude[56]));
  }
  const KvLayout& first = layers[0];
  if (const auto version = get<uint32_t>(&prelude[8]); version != kKvFileVersion) {
    return failed_precondition(name, "format version {} is not {}", version, kKvFileVersion);
  }
  if (const auto version = get<uint32_t>(&prelude[12]); version != kKvLayoutVersion) {
    return failed_precondition(name, "KV layout version {} is not {}", version, kKvLayoutVersion);
  }
  if (identity != Hash128{get<uint64_t>(&prelude[16]), get<uint64_t>(&prelude[24])}) {
    return failed_precondition(name, "was written by another model or configuration");
  }
  const auto num_layers = get<uint32_t>(&prelude[32]);
  const auto block_size = get<uint32_t>(&prelude[36]);
  const auto dtype = get<uint32_t>(&prelude[40]);
  if (dtype > static_cast<uint32_t>(KvDType::kQ8)) return malformed(name, "the header names KV type {}", dtype);
  if (const uint64_t bytes = get<uint32_t>(&prelude[44]) * sizeof(float); bytes != state_bytes) {
    return malformed(name, "holds a recurrent state of {} bytes, the cache has {}", bytes, state_bytes);
  }
  if (dtype != static_cast<uint32_t>(first.dtype)) {
    return failed_precondition(name, "holds {} values, the cache {}", kv_dtype_name(static_cast<KvDType>(dtype)),
                               kv_dtype_name(first.dtype));
  }
  if (block_size != static_cast<uint32_t>(first.block_size) || num_layers != layers.size()) {
    return failed_precondition(name, "holds {} layers in blocks of {} tokens, the cache {} in blocks of {}", num_layers,
                               block_size, layers.size(), first.block_size);
  }
  if (source.size() - kPreludeBytes - kChecksumBytes < kLayerBytes * layers.size()) {
    return malformed(name, "ends inside the table of {} layers", num_layers);
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::array<std::byte, kLayerBytes> entry;
    HEADRACE_RETURN_IF_ERROR(source.read(kPreludeBytes + kLayerBytes * layer, entry));
    const auto heads = get<uint32_t>(&entry[0]);
    const auto head_dim = get<uint32_t>(&entry[4]);
    if (heads == static_cast<uint32_t>(layers[layer].num_kv_heads) &&
        head_dim == static_cast<uint32_t>(layers[layer].head_dim)) {
      continue;
    }
    // Its identity matches, so this is damage or a forgery; the body's checksum need not be asked.
    return malformed(name, "layer {} has {} heads of {}, the cache {} of {}", layer, heads, head_dim,
                     layers[layer].num_kv_heads, layers[layer].head_dim);
  }
  const auto num_tokens = get<uint64_t>(&prelude[48]);
  if (file_bytes(layers, num_tokens, state_bytes) != source.size()) {
    return malformed(name, "{} tokens do not make {} bytes", num_tokens, source.size());
  }

  KvFileReader reader;
  reader.source_ = &source;
  reader.layers_ = &layers;
  reader.num_tokens_ = static_cast<int64_t>(num_tokens);
  reader.state_bytes_ = num_tokens == 0 ? 0 : state_bytes;
  reader.tokens_offset_ = kPreludeBytes + kLayerBytes * layers.size();
  reader.payload_offset_ = reader.tokens_offset_ + 4 * num_tokens;

  auto buffer = make_buffer(kReadBytes);
  if (!buffer) return out_of_memory(name, "no memory for a buffer of {} bytes", kReadBytes);
  Hasher whole;
  Hasher payload;
  const uint64_t end = source.size() - kChecksumBytes;
  for (uint64_t offset = 0; offset < end;) {
    // A read ends at the payload's edge, so that the payload has a hash of its own.
    const uint64_t edge = offset < reader.payload_offset_ ? reader.payload_offset_ : end;
    const auto part = std::span(*buffer).first(static_cast<size_t>(std::min<uint64_t>(kReadBytes, edge - offset)));
    HEADRACE_RETURN_IF_ERROR(source.read(offset, part));
    whole.update(part);
    if (offset >= reader.payload_offset_) payload.update(part);
    offset += part.size();
  }
  std::array<std::byte, kChecksumBytes> checksum;
  HEADRACE_RETURN_IF_ERROR(source.read(end, checksum));
  if (get<uint64_t>(checksum.data()) != whole.digest()) return malformed(name, "the checksum is wrong");
  reader.payload_hash_ = payload.digest();
  return reader;
}

Result<std::vector<int32_t>> KvFileReader::read_token_ids() const {
  std::vector<int32_t> token_ids;
  try {
    token_ids.resize(static_cast<size_t>(num_tokens_));
  } catch (const std::bad_alloc&) {
    return out_of_memory(source_->name(), "no memory for {} token ids", num_tokens_);
  }
  HEADRACE_RETURN_IF_ERROR(source_->read(tokens_offset_, std::as_writable_bytes(std::span(token_ids))));
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0) return malformed(source_->name(), "token {} has the id {}", i, token_ids[i]);
  }
  return token_ids;
}

Status KvFileReader::read_blocks(const KvFileMutableBlock& block, std::span<std::byte> state) const {
  Hasher hasher;
  uint64_t offset = payload_offset_;
  const int64_t block_size = (*layers_)[0].block_size;
  for (int64_t start = 0; start < num_tokens_; start += block_size) {
    for (size_t layer = 0; layer < layers_->size(); ++layer) {
      const std::span<std::byte> bytes = block(start / block_size, layer);
      if (bytes.empty()) continue;
      HEADRACE_RETURN_IF_ERROR(source_->read(offset, bytes));
      hasher.update(bytes);
      offset += bytes.size();
    }
  }
  if (state_bytes_ > 0) {
    HEADRACE_RETURN_IF_ERROR(source_->read(offset, state.first(static_cast<size_t>(state_bytes_))));
    hasher.update(state.first(static_cast<size_t>(state_bytes_)));
  }
  if (hasher.digest() != payload_hash_) return malformed(source_->name(), "changed while it was read");
  return Status();
}

}  // namespace headrace::kv
