#include "text/trie.h"

#include <algorithm>

namespace headrace::text {

Trie::Trie(std::vector<Key> keys) {
  std::erase_if(keys, [](const Key& key) { return key.first.empty(); });
  if (keys.empty()) return;
  std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.first < b.first; });

  // Breadth first, so that siblings get neighbouring numbers.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, keys.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back(0);
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    while (begin < end && keys[begin].first.size() == depth) nodes_[node].value = keys[begin++].second;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = keys[begin].first[depth];
      size_t stop = begin + 1;
      while (stop < end && keys[stop].first[depth] == label) ++stop;
      ranges.push_back({begin, stop, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(label));
      ++nodes_[node].children;
      begin = stop;
    }
  }
  root_.assign(256, kNone);
  for (uint32_t i = 0; i < nodes_[0].children; ++i)
    root_[labels_[nodes_[0].first_child + i]] = nodes_[0].first_child + i;
}

}  // namespace headrace::text
