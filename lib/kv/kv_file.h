// The stored positions of one sequence as a file, all numbers little-endian:
//
//   0   magic "HRKVSEQ\n"
//   8   format version u32
//   12  kKvLayoutVersion u32
//   16  identity u64 low, u64 high
//   32  layers u32, block size u32, dtype u32, floats of the recurrent state u32 (0: none)
//   48  tokens u64
//   56  bytes of the file u64
//   64  XXH3-64 of bytes 0..63                     (this far every format version agrees)
//   72  per layer (a part of the cache each): KV heads u32, head dim u32
//       token ids i32 [tokens]
//       per block, per layer: the block's bytes    (tensor/kv_layout.h; zero past the last row)
//       the recurrent state after the last token   (nothing for 0 tokens)
//       XXH3-64 of everything before
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/hash.h"
#include "base/status.h"
#include "tensor/kv_layout.h"

namespace headrace::kv {

inline constexpr uint32_t kKvFileVersion = 1;

using KvFileWrite = std::function<Status(std::span<const std::byte>)>;
// The bytes [layers[layer].block_bytes()] of the sequence's block `index` in one layer.
using KvFileBlock = std::function<std::span<const std::byte>(int64_t index, size_t layer)>;
using KvFileMutableBlock = std::function<std::span<std::byte>(int64_t index, size_t layer)>;

// Layers are not empty and share dtype and block size; `state` is empty where the model has none. The first failure of `write` ends the writing and is
// returned; kOutOfMemory when there is no memory for one block.
Status write_kv_file(const std::vector<KvLayout>& layers, const Hash128& identity, std::span<const int32_t> token_ids,
                     const KvFileBlock& block, std::span<const std::byte> state, const KvFileWrite& write);

// A file whose checksums, sizes and fit to a cache have been verified.
class KvFileReader {
 public:
  // Reads the whole source once, with memory for a few hundred KiB at most. kMalformed for damage,
  // kFailedPrecondition for another version, identity or layout. The source must outlive the reader.
  static Result<KvFileReader> open(ByteSource& source, const std::vector<KvLayout>& layers, const Hash128& identity,
                                   uint64_t state_bytes);

  int64_t num_tokens() const { return num_tokens_; }
  Result<std::vector<int32_t>> read_token_ids() const;
  // Fills every block, each before it asks for the next, and the state [state_bytes] unless there are no tokens.
  // kMalformed when the bytes are not those that open() verified.
  Status read_blocks(const KvFileMutableBlock& block, std::span<std::byte> state) const;

 private:
  ByteSource* source_ = nullptr;
  const std::vector<KvLayout>* layers_ = nullptr;
  int64_t num_tokens_ = 0;
  uint64_t state_bytes_ = 0;  // in the file
  uint64_t tokens_offset_ = 0;
  uint64_t payload_offset_ = 0;
  uint64_t payload_hash_ = 0;
};

// Rows of a block that its first used_tokens tokens, the first of them at position first_token, have completed.
int32_t used_rows(const KvLayout& layout, int64_t first_token, int64_t used_tokens);
// Zeroes rows [used, layout.rows_per_block()) of a block.
void zero_block_tail(const KvLayout& layout, std::span<std::byte> block, int32_t used);

}  // namespace headrace::kv
