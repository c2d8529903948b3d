// Byte layout of cached keys and values inside one block of the paged KV cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

enum class KvDType : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8 = 3 };

inline std::string_view kv_dtype_name(KvDType dtype) {
  constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "q8"};
  return kNames[static_cast<int>(dtype)];
}

// Tokens whose keys lie side by side: a dot product of one query with 16 keys is 16 independent lanes.
inline constexpr int kKvTile = 16;
// Values along head_dim that share one float16 scale in kQ8 (last group may be shorter).
inline constexpr int kKvQ8Group = 32;

// What is kept of a token.
enum class KvContent : int32_t {
  kKeysAndValues,
  kKeys,  // keys alone: what an indexer chooses positions by
  kRows,  // rows that are keys and values at once, in the order of values: they are read one by one
};

// A layer's block holds, for each KV head in order, its keys and then its values (HND), or the one of the two that
// `content` asks for:
//   keys   [block_size / 16][head_dim][16 tokens]      kQ8: int8, then scales float16 [block_size / 16][groups][16]
//   values [block_size][head_dim]                      kQ8: int8, then scales float16 [block_size][groups]
// groups = ceil(head_dim / 32). A slot is block_id * block_size + offset. With tokens_per_row a block has a row for each run
// of so many tokens (KvContent::kRows alone): run n's lies where its last token's, n * tokens_per_row + tokens_per_row - 1,
// would, at its offset / tokens_per_row, and block_size above is rows_per_block().
struct KvLayout {
  KvDType dtype = KvDType::kF16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;     // of keys and of values
  int32_t block_size = 16;  // tokens, a multiple of 16
  KvContent content = KvContent::kKeysAndValues;
  int32_t tokens_per_row = 1;

  size_t element_bytes() const { return dtype == KvDType::kF32 ? 4 : dtype == KvDType::kQ8 ? 1 : 2; }
  int32_t scale_groups() const { return (head_dim + kKvQ8Group - 1) / kKvQ8Group; }
  int32_t rows_per_block() const { return (block_size + tokens_per_row - 1) / tokens_per_row; }
  // Row of a block for the token at `offset` of it.
  int32_t row_of(int64_t offset) const { return static_cast<int32_t>(offset / tokens_per_row); }
  // The last token of a row: where it is looked for, and which token's slot it is stored by.
  int64_t last_token(int64_t row) const { return row * tokens_per_row + tokens_per_row - 1; }
  // Rows that a token at `position` and those before it complete.
  int64_t rows_before(int64_t position) const { return (position + 1) / tokens_per_row; }
  // Codes of the keys (or of the values) of one head in one block, without scales.
  size_t code_bytes() const {
    return element_bytes() * static_cast<size_t>(rows_per_block()) * static_cast<size_t>(head_dim);
  }
  size_t scale_bytes() const {
    return dtype == KvDType::kQ8 ? 2 * static_cast<size_t>(rows_per_block()) * static_cast<size_t>(scale_groups()) : 0;
  }
  // Keys (or values) of one head in one block.
  size_t half_bytes() const { return code_bytes() + scale_bytes(); }
  bool has_keys() const { return content != KvContent::kRows; }
  bool has_values() const { return content != KvContent::kKeys; }
  // Of a head's values, or rows, in its bytes.
  size_t values_offset() const { return has_keys() ? half_bytes() : 0; }
  size_t head_bytes() const { return content == KvContent::kKeysAndValues ? 2 * half_bytes() : half_bytes(); }
  // All heads of one layer in one block; every offset above is a multiple of 32 bytes when head_dim is even and no tokens
  // share a row.
  size_t block_bytes() const { return head_bytes() * static_cast<size_t>(num_kv_heads); }

  bool operator==(const KvLayout&) const = default;
};

// Raised whenever the meaning of the bytes above changes; files written with another version are refused.
inline constexpr uint32_t kKvLayoutVersion = 1;

}  // namespace headrace
