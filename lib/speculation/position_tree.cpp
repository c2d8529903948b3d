#include "speculation/position_tree.h"

#include <queue>
#include <vector>

namespace headrace::speculation {

DraftTree combine_positions(const DraftTree& beside, int32_t max_nodes) {
  struct Open {
    double survival = 1.0;
    int32_t parent = -1, node = 0;  // in the tree, and of `beside`
    bool operator<(const Open& other) const {
      return survival != other.survival ? survival < other.survival : node > other.node;
    }
  };
  const auto nodes = beside.nodes();
  std::vector<std::vector<int32_t>> at(static_cast<size_t>(beside.depth()) + 1);
  for (int32_t i = 0; i < beside.size(); ++i)
    at[static_cast<size_t>(nodes[static_cast<size_t>(i)].depth) - 1].push_back(i);
  std::priority_queue<Open> open;
  const auto open_behind = [&](int32_t parent, int32_t depth, double survival) {
    for (const int32_t i : at[static_cast<size_t>(depth)]) {
      open.push({survival * static_cast<double>(nodes[static_cast<size_t>(i)].claimed), parent, i});
    }
  };
  DraftTree tree;
  open_behind(-1, 0, 1.0);
  while (!open.empty() && tree.size() < max_nodes) {
    const Open best = open.top();
    open.pop();
    const DraftNode& node = nodes[static_cast<size_t>(best.node)];
    open_behind(tree.add(best.parent, node.token, node.claimed), node.depth, best.survival);
  }
  return tree;
}

}  // namespace headrace::speculation
