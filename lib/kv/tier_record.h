// One full block of the cache, or the recurrent state behind it, as a file of the disk tier. All numbers little-endian:
//
//   0   magic "HRKVBLK\n"
//   8   format version u32
//   12  kKvLayoutVersion u32
//   16  tag u64 low, u64 high          (identity and layouts of the cache)
//   32  key u64 low, u64 high          (hash over the tag's salt and all tokens up to the block's end)
//   48  chain u64 low, u64 high        (the prefix index's hash of the same, of another construction)
//   64  kind u32, codec u32
//   72  tokens u32, bytes of an element u32
//   80  raw bytes u64
//   88  stored bytes u64
//   96  XXH3-64 of the raw bytes
//   104 XXH3-64 of bytes 0..103 and the token ids
//   112 token ids i32 [tokens]
//       stored bytes
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kv/block_codec.h"

namespace headrace::kv {

inline constexpr uint32_t kTierVersion = 1;

enum class TierKind : uint32_t { kBlock = 0, kState = 1 };

// What a file is found by, and its name: "<tag>-<key>.kv", or ".state".
struct TierKey {
  Hash128 tag;
  Hash128 key;
  TierKind kind = TierKind::kBlock;
  bool operator==(const TierKey&) const = default;
};
struct TierKeyHash {
  size_t operator()(const TierKey& key) const {
    return static_cast<size_t>(key.key.low) + static_cast<size_t>(key.kind);
  }
};
std::string tier_file_name(const TierKey& key);
// Nothing for the names of other files.
std::optional<TierKey> parse_tier_file_name(std::string_view name);

// A file's contents but for its bytes: as they are, or as they have to be.
struct TierRecord {
  TierKey key;
  Hash128 chain;
  std::vector<int32_t> token_ids;  // the block's own
  uint64_t raw_bytes = 0;
};

// Why a file's bytes are not what was asked for.
enum class TierFault { kNone, kMissing, kUnreadable, kTruncated, kDamaged, kForeign };

// raw [record.raw_bytes]; stored as they are where the codec makes them no smaller.
std::vector<std::byte> write_tier_record(const TierRecord& record, std::span<const std::byte> raw, BlockCodec codec,
                                         size_t element_bytes);
// A file's bytes into raw [expected.raw_bytes], verified; on a fault raw holds anything.
TierFault read_tier_record(std::span<const std::byte> file, const TierRecord& expected, std::span<std::byte> raw);
// More than any file that write_tier_record makes of such a record.
uint64_t largest_tier_record(const TierRecord& record);

}  // namespace headrace::kv
