#include "kv/tier_record.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/format.h"

#include "kv/raw_bytes.h"
#include "tensor/kv_layout.h"

namespace headrace::kv {
namespace {

constexpr char kMagic[8] = {'H', 'R', 'K', 'V', 'B', 'L', 'K', '\n'};
constexpr size_t kHeaderBytes = 112;
constexpr size_t kHashedHeaderBytes = 104;

void put_hash(std::byte* at, const Hash128& hash) {
  put(at, hash.low);
  put(at + 8, hash.high);
}

Hash128 get_hash(const std::byte* at) { return {get<uint64_t>(at), get<uint64_t>(at + 8)}; }

uint64_t header_checksum(std::span<const std::byte> header, std::span<const std::byte> tokens) {
  return hash64(tokens.data(), tokens.size(), hash64(header.data(), kHashedHeaderBytes));
}

std::optional<Hash128> parse_hash(std::string_view text) {
  Hash128 hash;
  for (const auto& [part, half] : {std::pair(text.substr(0, 16), &hash.high), std::pair(text.substr(16), &hash.low)}) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), *half, 16);
    if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  }
  return hash;
}

}  // namespace

std::string tier_file_name(const TierKey& key) {
  return fmt::format("{:016x}{:016x}-{:016x}{:016x}.{}", key.tag.high, key.tag.low, key.key.high, key.key.low,
                     key.kind == TierKind::kBlock ? "kv" : "state");
}

std::optional<TierKey> parse_tier_file_name(std::string_view name) {
  constexpr size_t kHashDigits = 32;
  if (name.size() < 2 * kHashDigits + 1 || name[kHashDigits] != '-') return std::nullopt;
  TierKey key;
  const std::string_view extension = name.substr(2 * kHashDigits + 1);
  if (extension == ".state") {
    key.kind = TierKind::kState;
  } else if (extension != ".kv") {
    return std::nullopt;
  }
  const auto tag = parse_hash(name.substr(0, kHashDigits)), own = parse_hash(name.substr(kHashDigits + 1, kHashDigits));
  if (!tag || !own) return std::nullopt;
  key.tag = *tag;
  key.key = *own;
  // Only names as they are written, not other spellings of the same number.
  if (tier_file_name(key) != name) return std::nullopt;
  return key;
}

std::vector<std::byte> write_tier_record(const TierRecord& record, std::span<const std::byte> raw, BlockCodec codec,
                                         size_t element_bytes) {
  const auto compressed = compress_block(codec, element_bytes, raw);
  const std::span<const std::byte> stored = compressed ? std::span<const std::byte>(*compressed) : raw;
  const std::span<const std::byte> tokens = std::as_bytes(std::span(record.token_ids));
  std::vector<std::byte> file(kHeaderBytes + tokens.size() + stored.size());
  std::memcpy(file.data(), kMagic, sizeof(kMagic));
  put<uint32_t>(&file[8], kTierVersion);
  put<uint32_t>(&file[12], kKvLayoutVersion);
  put_hash(&file[16], record.key.tag);
  put_hash(&file[32], record.key.key);
  put_hash(&file[48], record.chain);
  put<uint32_t>(&file[64], static_cast<uint32_t>(record.key.kind));
  put<uint32_t>(&file[68], static_cast<uint32_t>(compressed ? codec : BlockCodec::kNone));
  put<uint32_t>(&file[72], static_cast<uint32_t>(record.token_ids.size()));
  put<uint32_t>(&file[76], static_cast<uint32_t>(element_bytes));
  put<uint64_t>(&file[80], raw.size());
  put<uint64_t>(&file[88], stored.size());
  put<uint64_t>(&file[96], hash64(raw.data(), raw.size()));
  put<uint64_t>(&file[104], header_checksum(file, tokens));
  std::ranges::copy(tokens, file.begin() + kHeaderBytes);
  std::ranges::copy(stored, file.begin() + static_cast<ptrdiff_t>(kHeaderBytes + tokens.size()));
  return file;
}

TierFault read_tier_record(std::span<const std::byte> file, const TierRecord& expected, std::span<std::byte> raw) {
  if (file.size() < kHeaderBytes) return TierFault::kTruncated;
  if (std::memcmp(file.data(), kMagic, sizeof(kMagic)) != 0) return TierFault::kForeign;
  if (get<uint32_t>(&file[8]) != kTierVersion) return TierFault::kForeign;
  const size_t token_bytes = expected.token_ids.size() * sizeof(int32_t);
  if (file.size() < kHeaderBytes + token_bytes) return TierFault::kTruncated;
  const auto tokens = file.subspan(kHeaderBytes, token_bytes);
  const auto claims_tokens = get<uint32_t>(&file[72]);
  if (claims_tokens == expected.token_ids.size() && get<uint64_t>(&file[104]) != header_checksum(file, tokens)) {
    return TierFault::kDamaged;
  }
  if (claims_tokens != expected.token_ids.size() || get<uint32_t>(&file[12]) != kKvLayoutVersion ||
      get_hash(&file[16]) != expected.key.tag || get_hash(&file[32]) != expected.key.key ||
      get_hash(&file[48]) != expected.chain || get<uint32_t>(&file[64]) != static_cast<uint32_t>(expected.key.kind) ||
      get<uint64_t>(&file[80]) != expected.raw_bytes ||
      std::memcmp(tokens.data(), expected.token_ids.data(), token_bytes) != 0) {
    return TierFault::kForeign;
  }
  // The header is whole and ours; what does not fit it from here on is damage.
  const auto codec = static_cast<BlockCodec>(get<uint32_t>(&file[68]));
  if (!has_codec(codec)) return TierFault::kForeign;  // of a build that has another
  const auto element_bytes = get<uint32_t>(&file[76]);
  const uint64_t stored_bytes = get<uint64_t>(&file[88]);
  const auto stored = file.subspan(kHeaderBytes + token_bytes);
  if (stored.size() < stored_bytes) return TierFault::kTruncated;
  if (stored.size() > stored_bytes || element_bytes == 0) return TierFault::kDamaged;
  if (!decompress_block(codec, element_bytes, stored, raw)) return TierFault::kDamaged;
  return hash64(raw.data(), raw.size()) == get<uint64_t>(&file[96]) ? TierFault::kNone : TierFault::kDamaged;
}

uint64_t largest_tier_record(const TierRecord& record) {
  return kHeaderBytes + record.token_ids.size() * sizeof(int32_t) + record.raw_bytes;
}

}  // namespace headrace::kv
