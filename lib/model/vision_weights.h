// The weights of a vision encoder and its projectors, as a backend holds them.
#pragma once

#include <string>
#include <vector>

#include "model/vision_spec.h"
#include "model/weights.h"

namespace headrace {

struct ProjectorWeights {
  NormWeight norm;  // may be empty
  LinearWeight linear_1, linear_2;
};

// Immutable once loaded.
struct VisionWeights {
  LinearWeight patch;            // [hidden_size, patch_floats]
  std::vector<float> class_row;  // [hidden_size] or empty
  LinearWeight positions;        // [num_positions, hidden_size] or empty
  ModelWeights encoder;
  ProjectorWeights projector;
  std::vector<ProjectorWeights> deep;
  uint64_t bytes = 0;  // of all

  // As ModelWeights::load; of entries that resolve_weights gave for list_vision_weights.
  static Result<VisionWeights> load(const VisionSpec& spec, const std::vector<WeightEntry>& entries,
                                    const TensorFile& file, const PackOptions& options, Backend& backend);
};

}  // namespace headrace
