#include "speculation/verify_paths.h"

#include <algorithm>
#include <utility>

namespace headrace::speculation {

std::vector<VerifyPath> verify_paths(const DraftTree& tree, int32_t num_verified) {
  std::vector<VerifyPath> paths;
  for (int32_t i = 0; i < num_verified; ++i) {
    const DraftNode& node = tree.nodes()[static_cast<size_t>(i)];
    const auto ends = std::ranges::find_if(
        paths, [&](const VerifyPath& path) { return node.parent >= 0 && path.nodes.back() == node.parent; });
    if (ends != paths.end()) {
      ends->nodes.push_back(i);
      continue;
    }
    VerifyPath path;
    path.num_shared = node.depth - 1;
    for (int32_t at = i; at >= 0; at = tree.nodes()[static_cast<size_t>(at)].parent) path.nodes.push_back(at);
    std::ranges::reverse(path.nodes);
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace headrace::speculation
