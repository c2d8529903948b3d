// The rows that verify a tree of guesses: paths from its root to its leaves, each a continuation of the sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "speculation/draft_tree.h"

namespace headrace::speculation {

// Rows of a path stand behind each other as those of a chain do, so that every kind of layer gives a guess the bits that
// decoding gives it. What two paths have in common is computed for both.
struct VerifyPath {
  std::vector<int32_t> nodes;  // from below the root to a leaf
  int32_t num_shared = 0;      // of them, from the front: nodes of a path before
};

// Paths of the first num_verified nodes: a node goes on from the path that ends with its parent, else it begins one. The first
// path begins with the first node; none where there are no nodes.
std::vector<VerifyPath> verify_paths(const DraftTree& tree, int32_t num_verified);

// Rows that a node adds: its own where its parent is the end of a path, else those of a path of its own, the root's among them.
inline int64_t rows_of_guess(const DraftNode& node, bool begins_path) { return begins_path ? 1 + node.depth : 1; }

}  // namespace headrace::speculation
