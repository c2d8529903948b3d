// A model's weights in a backend's own order, loaded tensor by tensor from a file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "formats/tensor_file.h"
#include "model/model_spec.h"
#include "ops/backend.h"

namespace headrace {

// One weight the spec asks for. Names are the same for both file kinds: embed.weight, layers.N.q_proj.weight,
// layers.N.attention_norm.weight, final_norm.weight, lm_head.weight.
struct WeightEntry {
  std::string name;
  std::string file_name;  // of the tensor in the file
  std::vector<uint64_t> shape;
};

struct LinearWeight {
  std::unique_ptr<PackedWeight> weight;
  std::vector<float> bias;  // [out_features] or empty

  LinearOutput to(float* y, bool accumulate = false) const {
    return {weight.get(), bias.empty() ? nullptr : bias.data(), y, weight->rows(), accumulate};
  }
};

struct GqaWeights {
  LinearWeight q, k, v, o;
  std::vector<float> q_norm, k_norm;  // [head_dim] or empty
};

struct DenseWeights {
  LinearWeight gate, up, down;
};

struct LayerWeights {
  std::vector<float> attention_norm, post_attention_norm;        // [hidden_size]; post_*: may be empty
  std::vector<float> feed_forward_norm, post_feed_forward_norm;  // [hidden_size]
  std::variant<GqaWeights> attention;
  std::variant<DenseWeights> feed_forward;
};

// Called with the share loaded so far, 0 to 1; false cancels the load.
using LoadProgress = std::function<bool(double)>;

// Immutable once loaded; independent of the file, but not of the kind of backend that packed it.
struct ModelWeights {
  LinearWeight embedding;  // no bias
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  std::optional<LinearWeight> lm_head;  // absent when tied
  uint64_t bytes = 0;                   // packed weights and vectors

  const LinearWeight& head() const { return lm_head ? *lm_head : embedding; }

  // Reads and packs every entry. kCancelled when progress says so, kMalformed for a non-finite norm or bias.
  static Result<ModelWeights> load(const ModelSpec& spec, const std::vector<WeightEntry>& entries,
                                   const TensorFile& file, const PackOptions& options, const LoadProgress& progress,
                                   Backend& backend);
};

}  // namespace headrace
