// A byte trie over a fixed set of keys, for longest-match and common-prefix searches.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::text {

class Trie {
 public:
  using Key = std::pair<std::string_view, int32_t>;
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;

  Trie() = default;
  // Empty keys are left out; of equal keys the last one's value (>= 0) counts. The views are not kept.
  explicit Trie(std::vector<Key> keys);

  bool empty() const { return nodes_.empty(); }
  // The child of `node` along `byte`, or kNone. The trie must not be empty.
  uint32_t step(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return root_[byte];
    const Node& n = nodes_[node];
    // Siblings stand in a row, sorted: few enough that a scan beats a search, but for wide nodes.
    uint32_t low = n.first_child, high = n.first_child + n.children;
    while (high - low > 8) {
      const uint32_t middle = (low + high) / 2;
      if (labels_[middle] <= byte) {
        low = middle;
      } else {
        high = middle;
      }
    }
    for (; low < high; ++low) {
      if (labels_[low] == byte) return low;
    }
    return kNone;
  }
  // The value of the key that ends at `node`, or -1.
  int32_t value(uint32_t node) const { return nodes_[node].value; }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint32_t children = 0;
    int32_t value = -1;
  };
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // of the edge that leads to each node
  std::vector<uint32_t> root_;   // 256 children of the root
};

}  // namespace headrace::text
