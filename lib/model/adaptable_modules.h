// The linear modules of a model under the names that its makers' code and adapters call them by: model.layers.0.self_attn.q_proj,
// blk.0.attn_q.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/model.h"

namespace headrace {

struct AdaptableModule {
  // Rows of one of the module's matrices that are one of the model's weights, in that weight's order.
  struct Part {
    const PackedWeight* weight;
    uint64_t matrix;
    std::vector<uint64_t> rows;
  };
  uint64_t rows = 0, cols = 0;  // out_features, in_features
  uint64_t matrices = 1;        // of a stack, one for each expert
  bool is_stack = false;        // the tensor has a dimension for them
  std::vector<Part> parts;
  std::string why_not;  // empty, or why nothing can be added to its products
};

// Those of the names wanted that the model has. Their rows are listed: of a model with many experts all together are large.
std::unordered_map<std::string, AdaptableModule> adaptable_modules(const Model& model,
                                                                   const std::unordered_set<std::string_view>& wanted);

}  // namespace headrace
