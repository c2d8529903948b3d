// How a batch's attention is cut into tiles of rows that walk the same cached positions together.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/op_params.h"

namespace headrace {

// Partial sums of every row are closed at multiples of this many positions and merged in order, whether one thread
// walks the splits or several share them, for one sequence's rows or for those of several that share the positions.
inline constexpr int64_t kAttentionSplit = 512;

struct TileToken {
  int32_t sequence;
  int32_t row;  // of the batch
};

// Rows of one or several sequences over a range of positions that lie in the same blocks for all of them.
struct AttentionTile {
  int32_t first_token, num_tokens;  // of AttentionPlan::tokens
  int32_t sequence;                 // whose block table is read
  int64_t begin, end;               // positions that any row sees
  bool resumes;                     // an earlier stage merged what its rows see before `begin`
  bool goes_on;                     // a later one will merge what they see from `end` on

  int64_t first_split() const { return begin / kAttentionSplit; }
  int64_t num_splits() const { return (end - 1) / kAttentionSplit - first_split() + 1; }
};

// A row is in one tile of a stage at most, and its tiles' positions follow each other from stage to stage.
struct AttentionPlan {
  std::vector<TileToken> tokens;
  std::vector<std::vector<AttentionTile>> stages;
  int32_t most_tokens = 0;  // of a tile

  bool has_stages() const { return stages.size() > 1; }
};

// Sequences with few rows whose block tables begin alike walk whole splits of those blocks together.
AttentionPlan plan_attention(const PagedAttentionParams& params, int num_threads);

}  // namespace headrace
