// A linear layer's weight as a backend holds it.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend.h"

namespace headrace {

struct LinearWeight {
  std::unique_ptr<PackedWeight> weight;
  std::vector<float> bias;  // [out_features] or empty

  LinearOutput to(float* y, bool accumulate = false) const {
    return {weight.get(), bias.empty() ? nullptr : bias.data(), y, weight->rows(), accumulate};
  }
};

}  // namespace headrace
