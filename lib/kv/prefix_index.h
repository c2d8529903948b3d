// Which block holds the keys and values of which tokens after which prefix.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace headrace::kv {

// Published blocks form trees: a block stands for its tokens after those of its parent, a root for its tokens
// at position 0 under a salt. A lookup goes by hash128(parent's hash, tokens), and a hit is then verified:
// the block's own tokens, its parent block (verified the same way one step before) and, at a root, the salt.
// Two contents of one hash live side by side. All memory is taken at creation, so that publishing cannot
// fail. Thread rule: the owner locks.
class PrefixIndex {
 public:
  using Salt = std::shared_ptr<const std::string>;  // never null

  // hash_mask is anded to both halves of every hash; 0 makes all blocks collide.
  PrefixIndex(int32_t num_blocks, int32_t block_size, uint64_t hash_mask);

  // The hash before the first block: of the identity and the salt.
  static Hash128 root_hash(const Hash128& identity, const std::string& salt);

  int64_t size() const { return size_; }
  bool contains(int32_t block) const { return nodes_[static_cast<size_t>(block)].published; }
  const Hash128& hash(int32_t block) const { return nodes_[static_cast<size_t>(block)].hash; }
  int32_t parent(int32_t block) const { return nodes_[static_cast<size_t>(block)].parent; }
  std::span<const int32_t> tokens(int32_t block) const {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
  }

  // tokens [block_size]; parent -1 for the first block of a sequence, whose hash is then root_hash's.
  Hash128 child_hash(const Hash128& parent_hash, std::span<const int32_t> tokens) const;
  // The block with these tokens after `parent`, or -1.
  int32_t find(const Hash128& hash, int32_t parent, std::span<const int32_t> tokens, const std::string& salt) const;
  // Adds a block that is not in the index and whose contents are not either; parent is -1 or in the index.
  void insert(int32_t block, const Hash128& hash, int32_t parent, std::span<const int32_t> tokens, const Salt& salt);
  // Takes a block without children out.
  void erase(int32_t block);

  // Links, hashes, children counts and uniqueness. kInternal when one is broken.
  Status check(const Hash128& identity) const;

 private:
  struct Node {
    Hash128 hash;
    Salt salt;             // at a root only
    int32_t parent = -1;   // block
    int32_t next = -1;     // in the bucket
    int32_t children = 0;  // published blocks whose parent this is
    bool published = false;
  };
  size_t bucket(const Hash128& hash) const { return static_cast<size_t>(hash.low) & (buckets_.size() - 1); }

  size_t block_size_;
  uint64_t hash_mask_;
  int64_t size_ = 0;
  std::vector<Node> nodes_;       // [num_blocks]
  std::vector<int32_t> tokens_;   // [num_blocks][block_size]
  std::vector<int32_t> buckets_;  // first block of each, -1 for none; a power of two of them
};

}  // namespace headrace::kv
