// What HeadDrafter's parts share of a request they guess at.
#pragma once

#include <cstdint>

#include "speculation/guess_chain.h"
#include "speculation/head_drafter.h"

namespace headrace::speculation {

struct HeadDrafter::Line {
  GuessChain chain;
  Sequence& sequence;
  int64_t begin = 0;                // its first row of the pass
  const float* features = nullptr;  // of the rows of the pass
  DraftTree& tree;
  int64_t end() const { return static_cast<int64_t>(sequence.tokens.size()); }
};

}  // namespace headrace::speculation
