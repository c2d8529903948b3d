#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>

namespace headrace::kv {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size, uint64_t hash_mask)
    : block_size_(static_cast<size_t>(block_size)),
      hash_mask_(hash_mask),
      nodes_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks)), -1) {}

Hash128 PrefixIndex::root_hash(const Hash128& identity, const std::string& salt) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &identity, sizeof(identity));
  XXH3_128bits_update(&state, salt.data(), salt.size());
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return {digest.low64, digest.high64};
}

Hash128 PrefixIndex::child_hash(const Hash128& parent_hash, std::span<const int32_t> tokens) const {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &parent_hash, sizeof(parent_hash));
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return {digest.low64 & hash_mask_, digest.high64 & hash_mask_};
}

int32_t PrefixIndex::find(const Hash128& hash, int32_t parent, std::span<const int32_t> tokens,
                          const std::string& salt) const {
  for (int32_t block = buckets_[bucket(hash)]; block >= 0; block = nodes_[static_cast<size_t>(block)].next) {
    const Node& node = nodes_[static_cast<size_t>(block)];
    if (node.hash == hash && node.parent == parent && std::ranges::equal(this->tokens(block), tokens) &&
        (parent >= 0 || *node.salt == salt)) {
      return block;
    }
  }
  return -1;
}

void PrefixIndex::insert(int32_t block, const Hash128& hash, int32_t parent, std::span<const int32_t> tokens,
                         const Salt& salt) {
  Node& node = nodes_[static_cast<size_t>(block)];
  int32_t& first = buckets_[bucket(hash)];
  node.hash = hash;
  node.parent = parent;
  if (parent >= 0) {
    ++nodes_[static_cast<size_t>(parent)].children;
  } else {
    node.salt = salt;
  }
  node.next = first;
  node.children = 0;
  node.published = true;
  first = block;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(block) * block_size_));
  ++size_;
}

void PrefixIndex::erase(int32_t block) {
  Node& node = nodes_[static_cast<size_t>(block)];
  int32_t* link = &buckets_[bucket(node.hash)];
  while (*link != block) link = &nodes_[static_cast<size_t>(*link)].next;
  *link = node.next;
  if (node.parent >= 0) --nodes_[static_cast<size_t>(node.parent)].children;
  node = Node();
  --size_;
}

Status PrefixIndex::check(const Hash128& identity) const {
  int64_t linked = 0;
  std::vector<int32_t> children(nodes_.size(), 0);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (int32_t block = buckets_[i]; block >= 0; block = nodes_[static_cast<size_t>(block)].next) {
      const Node& node = nodes_[static_cast<size_t>(block)];
      if (++linked > size_) return internal_error("prefix index", "a bucket runs in a circle");
      if (!node.published) return internal_error("prefix index", "block {} is linked and not published", block);
      if (bucket(node.hash) != i) return internal_error("prefix index", "block {} is in the wrong bucket", block);
      if (node.parent >= 0 && !contains(node.parent)) {
        return internal_error("prefix index", "the parent {} of block {} is not published", node.parent, block);
      }
      if ((node.parent < 0) != (node.salt != nullptr)) {
        return internal_error("prefix index", "block {} has a salt in the wrong place", block);
      }
      const Hash128 parent_hash = node.parent >= 0 ? hash(node.parent) : root_hash(identity, *node.salt);
      if (child_hash(parent_hash, tokens(block)) != node.hash) {
        return internal_error("prefix index", "block {} has another hash than its tokens", block);
      }
      if (find(node.hash, node.parent, tokens(block), node.salt ? *node.salt : std::string()) != block) {
        return internal_error("prefix index", "block {} is published twice", block);
      }
      if (node.parent >= 0) ++children[static_cast<size_t>(node.parent)];
    }
  }
  if (linked != size_) return internal_error("prefix index", "{} blocks are linked, {} counted", linked, size_);
  for (size_t block = 0; block < nodes_.size(); ++block) {
    if (nodes_[block].children != children[block]) {
      return internal_error("prefix index", "block {} has {} children, counted {}", block, children[block],
                            nodes_[block].children);
    }
  }
  return Status();
}

}  // namespace headrace::kv
