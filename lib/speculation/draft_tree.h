// Guesses at a sequence's next tokens: a tree whose root is the last accepted token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::speculation {

// What a drafter drew a node's token from, after the request's temperature and filters: probabilities that add up to 1, each
// id once, others have none. Verification is exact only if the token really was drawn from it.
struct DraftDistribution {
  std::vector<int32_t> ids;
  std::vector<float> probabilities;
};

struct DraftNode {
  int32_t token = 0;
  int32_t parent = -1;        // index of the node before it, lower than its own; -1: the root
  int32_t depth = 1;          // 1 below the root
  float claimed = 0.0f;       // the drafter's estimate that the token is accepted where its parent was, in [0, 1]
  float confidence = 0.0f;    // the same as far as measurements bear it out; claimed, before they are asked
  int32_t distribution = -1;  // that the token was drawn from; -1: it was chosen, by a rule without chance
  int32_t drafter = 0;        // who guessed it, an index that the owner of the tree gives
};

// Siblings stand in the order in which they are tried. Drawn siblings: each was drawn from its distribution without those of
// its earlier drawn siblings, renormalized, be it given so or not.
class DraftTree {
 public:
  void clear();
  bool empty() const { return nodes_.empty(); }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  std::span<const DraftNode> nodes() const { return nodes_; }
  std::span<DraftNode> nodes() { return nodes_; }
  const DraftDistribution& distribution(int32_t index) const { return distributions_[static_cast<size_t>(index)]; }

  // Appends a child of `parent` (-1: of the root) and gives its index.
  int32_t add(int32_t parent, int32_t token, float claimed, int32_t distribution = -1, int32_t drafter = 0);
  // Of any number of nodes.
  int32_t add_distribution(DraftDistribution distribution);

  // Adds another drafter's tree, up to max_nodes nodes and max_depth in all: a chosen node that is there already (the same
  // tokens from the root on) is the same node, of the drafter with the greater confidence; a drawn one stands for itself. Nodes whose
  // parent was left out are left out.
  void merge(const DraftTree& other, int32_t drafter, int32_t max_nodes, int32_t max_depth);
  // Leaves only the nodes that keep[i] names; a node without its parent goes too.
  void prune(const std::vector<bool>& keep);
  // Puts these nodes first, in this order (a parent before its children); the others follow in the order they have. Drawn
  // siblings must keep their order. Gives the new index of every node.
  std::vector<int32_t> put_first(std::span<const int32_t> first);

  // Of the deepest node; 0 where there is none.
  int32_t depth() const;
  // Whether no node has a sibling.
  bool is_chain() const;
  // Probability that a node is accepted, by the confidences from the root on.
  double survival(int32_t node) const;
  bool has_drawn() const;
  // The path from the root that promises the most accepted tokens. Where nodes were drawn, it is chosen level by level, so that
  // no choice depends on a token that was drawn at that level or behind it.
  std::vector<bool> best_chain() const;
  // Leaves that path.
  void keep_best_chain();

 private:
  int32_t best_leaf() const;
  int32_t leaf_by_levels() const;

  std::vector<DraftNode> nodes_;
  std::vector<DraftDistribution> distributions_;
};

}  // namespace headrace::speculation
