// Low-rank adapters (LoRA, Hu et al. 2021): what is added to products with a model's weights, y = W x + s B A x. They are
// chosen row by row of a step, so that one model serves many at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "model/model.h"
#include "ops/backend.h"

namespace headrace {

// Of one weight. Products with it are float32 whatever the weight's type.
struct AdapterPair {
  std::unique_ptr<PackedWeight> down;  // A [rank, in_features]
  std::unique_ptr<PackedWeight> up;    // s B [out_features, rank]
};

// An adapter as its files hold it, fitted to a model's weights and not packed yet.
struct AdapterParts {
  struct Part {
    const PackedWeight* weight;
    int64_t rank;
    std::vector<float> down, up;  // as AdapterPair
  };
  std::vector<Part> parts;
  uint64_t num_modules = 0;
  Hash128 identity;

  // Of a path as model/adapter_file.h tells. kUnsupported with the tensor or key as place for what a model has no such module
  // for, or cannot adapt; kMalformed for shapes that do not fit, or values that are not finite.
  static Result<AdapterParts> read(const Model& model, const std::string& path);
  // What adds both products: of a weight that both have, one of their ranks together.
  static AdapterParts sum(AdapterParts a, const AdapterParts& b);
};

// Immutable; any thread. Serves the model that it was read for, which must outlive its use.
class Adapter {
 public:
  static Result<std::shared_ptr<const Adapter>> pack(std::shared_ptr<const Model> model, AdapterParts parts,
                                                     Backend& backend);

  const std::shared_ptr<const Model>& model() const { return model_; }
  // Null where the adapter leaves the weight alone.
  const AdapterPair* find(const PackedWeight* weight) const {
    const auto found = pairs_.find(weight);
    return found == pairs_.end() ? nullptr : &found->second;
  }
  // Whether any expert of these is adapted.
  bool adapts_experts(const MoeWeights& moe) const { return adapted_experts_.contains(&moe); }
  bool adapts_experts() const { return !adapted_experts_.empty(); }
  int64_t max_rank() const { return max_rank_; }
  // Of the content, wherever it was read from: equal adapters share cached keys and values, others never do.
  const Hash128& identity() const { return identity_; }
  std::string identity_text() const;  // 32 hexadecimal digits
  // JSON: modules, max_rank, parameters, bytes, identity.
  std::string describe() const;

 private:
  Adapter() = default;

  std::shared_ptr<const Model> model_;
  std::unordered_map<const PackedWeight*, AdapterPair> pairs_;
  std::unordered_set<const MoeWeights*> adapted_experts_;
  uint64_t num_modules_ = 0, num_parameters_ = 0, bytes_ = 0;
  int64_t max_rank_ = 0;
  Hash128 identity_;
};

// The rows [begin, begin + count) of a step that one adapter serves.
struct AdapterRows {
  const Adapter* adapter;
  int64_t begin, count;
};

}  // namespace headrace
