// The linear modules of a model under the names that its makers' code and adapters call them by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace headrace {

struct AdaptableModule {
  // Rows of the module's matrix that are one of the model's weights, in that weight's order.
  struct Part {
    const PackedWeight* weight;
    std::vector<uint64_t> rows;
  };
  std::string name;             // model.layers.0.self_attn.q_proj
  uint64_t rows = 0, cols = 0;  // out_features, in_features
  std::vector<Part> parts;
  std::string why_not;  // empty, or why nothing can be added to its products
};

std::vector<AdaptableModule> adaptable_modules(const Model& model);

}  // namespace headrace
