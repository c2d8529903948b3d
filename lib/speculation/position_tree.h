// Trees of guesses that do not depend on each other: heads that each see one position, blocks that are guessed at once.
#pragma once

#include <cstdint>

#include "speculation/draft_tree.h"

namespace headrace::speculation {

// beside: a chain and what else may come at each of its positions. Gives the tree in which every guess at a position may follow every
// one at the position before: of all paths the nodes that are likeliest by the product of what they claim, at most max_nodes.
// (Medusa takes such products of its heads' tokens by a fixed list, made of average acceptance; here the claims of the row decide.)
DraftTree combine_positions(const DraftTree& beside, int32_t max_nodes);

}  // namespace headrace::speculation
