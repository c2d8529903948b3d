#include "speculation/draft_tree.h"

#include <algorithm>
#include <utility>

namespace headrace::speculation {

void DraftTree::clear() {
  nodes_.clear();
  distributions_.clear();
}

int32_t DraftTree::add(int32_t parent, int32_t token, float claimed, int32_t distribution, int32_t drafter) {
  const int32_t depth = parent < 0 ? 1 : nodes_[static_cast<size_t>(parent)].depth + 1;
  nodes_.push_back({token, parent, depth, claimed, claimed, distribution, drafter});
  return size() - 1;
}

int32_t DraftTree::add_distribution(DraftDistribution distribution) {
  distributions_.push_back(std::move(distribution));
  return static_cast<int32_t>(distributions_.size()) - 1;
}

void DraftTree::merge(const DraftTree& other, int32_t drafter, int32_t max_nodes, int32_t max_depth) {
  constexpr int32_t kLeftOut = -2;
  std::vector<int32_t> place(other.nodes_.size(), kLeftOut);
  std::vector<int32_t> taken(other.distributions_.size(), -1);  // distributions, by their place here
  for (size_t i = 0; i < other.nodes_.size(); ++i) {
    const DraftNode& node = other.nodes_[i];
    const int32_t parent = node.parent < 0 ? -1 : place[static_cast<size_t>(node.parent)];
    if (parent == kLeftOut || node.depth > max_depth) continue;
    if (node.distribution < 0) {
      const auto same = std::find_if(nodes_.begin(), nodes_.end(), [&](const DraftNode& mine) {
        return mine.parent == parent && mine.token == node.token && mine.distribution < 0;
      });
      if (same != nodes_.end()) {
        if (node.confidence > same->confidence) {
          same->claimed = node.claimed;
          same->confidence = node.confidence;
          same->drafter = drafter;
        }
        place[i] = static_cast<int32_t>(same - nodes_.begin());
        continue;
      }
    }
    if (size() >= max_nodes) continue;
    int32_t distribution = -1;
    if (node.distribution >= 0) {
      int32_t& at = taken[static_cast<size_t>(node.distribution)];
      if (at < 0) at = add_distribution(other.distribution(node.distribution));
      distribution = at;
    }
    place[i] = add(parent, node.token, node.claimed, distribution, drafter);
    nodes_.back().confidence = node.confidence;
  }
}

void DraftTree::prune(const std::vector<bool>& keep) {
  std::vector<int32_t> place(nodes_.size(), -1);
  size_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    DraftNode node = nodes_[i];
    if (!keep[i] || (node.parent >= 0 && place[static_cast<size_t>(node.parent)] < 0)) continue;
    if (node.parent >= 0) node.parent = place[static_cast<size_t>(node.parent)];
    place[i] = static_cast<int32_t>(kept);
    nodes_[kept++] = node;
  }
  nodes_.resize(kept);
}

std::vector<int32_t> DraftTree::put_first(std::span<const int32_t> first) {
  std::vector<int32_t> place(nodes_.size(), -1);
  std::vector<DraftNode> ordered;
  ordered.reserve(nodes_.size());
  const auto put = [&](int32_t at) {
    DraftNode node = nodes_[static_cast<size_t>(at)];
    if (node.parent >= 0) node.parent = place[static_cast<size_t>(node.parent)];
    place[static_cast<size_t>(at)] = static_cast<int32_t>(ordered.size());
    ordered.push_back(node);
  };
  for (const int32_t at : first) put(at);
  for (int32_t at = 0; at < size(); ++at) {
    if (place[static_cast<size_t>(at)] < 0) put(at);
  }
  nodes_ = std::move(ordered);
  return place;
}

bool DraftTree::has_drawn() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const DraftNode& node) { return node.distribution >= 0; });
}

int32_t DraftTree::depth() const {
  int32_t deepest = 0;
  for (const DraftNode& node : nodes_) deepest = std::max(deepest, node.depth);
  return deepest;
}

bool DraftTree::is_chain() const {
  for (int32_t i = 0; i < size(); ++i) {
    if (nodes_[static_cast<size_t>(i)].parent != i - 1) return false;
  }
  return true;
}

double DraftTree::survival(int32_t node) const {
  double product = 1.0;
  for (; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) {
    product *= static_cast<double>(nodes_[static_cast<size_t>(node)].confidence);
  }
  return product;
}

int32_t DraftTree::best_leaf() const {
  // Tokens expected along the path to each node: the sum of the survivals on it.
  std::vector<double> survival(nodes_.size()), expected(nodes_.size());
  size_t best = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const DraftNode& node = nodes_[i];
    const auto parent = static_cast<size_t>(node.parent);
    survival[i] = (node.parent < 0 ? 1.0 : survival[parent]) * static_cast<double>(node.confidence);
    expected[i] = (node.parent < 0 ? 0.0 : expected[parent]) + survival[i];
    if (expected[i] > expected[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

// From the root down, each time the child with the greatest confidence, the first of equals. Later siblings of a drawn node
// are not looked at: what they were drawn from lacks the first.
int32_t DraftTree::leaf_by_levels() const {
  int32_t at = -1;
  for (;;) {
    int32_t best = -1;
    std::vector<int32_t> seen;  // distributions
    for (int32_t i = at + 1; i < size(); ++i) {
      const DraftNode& node = nodes_[static_cast<size_t>(i)];
      if (node.parent != at) continue;
      if (node.distribution >= 0) {
        if (std::find(seen.begin(), seen.end(), node.distribution) != seen.end()) continue;
        seen.push_back(node.distribution);
      }
      if (best < 0 || node.confidence > nodes_[static_cast<size_t>(best)].confidence) best = i;
    }
    if (best < 0) return at;
    at = best;
  }
}

std::vector<bool> DraftTree::best_chain() const {
  std::vector<bool> keep(nodes_.size(), false);
  if (empty()) return keep;
  for (int32_t node = has_drawn() ? leaf_by_levels() : best_leaf(); node >= 0;
       node = nodes_[static_cast<size_t>(node)].parent) {
    keep[static_cast<size_t>(node)] = true;
  }
  return keep;
}

void DraftTree::keep_best_chain() {
  if (!is_chain()) prune(best_chain());
}

}  // namespace headrace::speculation
