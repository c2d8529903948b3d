#include "model/adaptable_modules.h"

#include <unordered_map>
#include <variant>

#include "model/weight_layout.h"

namespace headrace {

namespace {

// The matrices of a layer whose products go through linear() of model/blocks.h, by our names.
class Products {
 public:
  explicit Products(const ModelWeights& weights) {
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      prefix_ = fmt::format("layers.{}.", i);
      std::visit([this](const auto& attention) { add(attention); }, weights.layers[i].attention);
      std::visit([this](const auto& block) { add(block, ""); }, weights.layers[i].feed_forward);
    }
  }

  const PackedWeight* find(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? nullptr : found->second;
  }

 private:
  void add(const char* part, const LinearWeight& weight, const char* group = "") {
    if (weight.weight != nullptr) weights_.emplace(prefix_ + group + part + ".weight", weight.weight.get());
  }
  void add(const GqaWeights& weights) {
    add("q_proj", weights.q);
    add("q_gate", weights.gate);
    add("k_proj", weights.k);
    add("v_proj", weights.v);
    add("o_proj", weights.o);
  }
  void add(const LatentWeights& weights) {
    add("q_down", weights.q_down);
    add("q_proj", weights.q);
    add("latent", weights.latent);
    add("k_rope", weights.k_rope);
    add("o_proj", weights.o);
  }
  void add(const CompressedWeights& weights) {
    add("q_down", weights.q_down);
    add("q_proj", weights.q);
    add("k_proj", weights.k);
    add("o_proj", weights.o);
    add("compressor.value", weights.compressor.value);
    add("compressor.gate", weights.compressor.gate);
    add("indexer.compressor.value", weights.index_compressor.value);
    add("indexer.compressor.gate", weights.index_compressor.gate);
    add("indexer.q_proj", weights.index_q);
    add("indexer.head_weights", weights.index_head_weights);
  }
  void add(const AttentionBesideMambaWeights& weights) { add(weights.attention); }
  template <class Mixer>
  void add(const Mixer&) {}
  void add(const DenseWeights& weights, const char* group) {
    add("gate_proj", weights.gate, group);
    add("up_proj", weights.up, group);
    add("down_proj", weights.down, group);
  }
  void add(const MoeWeights& weights, const char*) { add(weights.shared, "shared."); }
  void add(const DenseBesideExpertsWeights&, const char*) {}
  void add(const NoFeedForwardWeights&, const char*) {}

  std::string prefix_;
  std::unordered_map<std::string, const PackedWeight*> weights_;
};

// Why nothing is added to the products of a weight that is none of the above.
std::string_view why_not(std::string_view name) {
  if (name.find(".experts.") != std::string_view::npos) return "adapters of experts are not built";
  if (name.find(".heads.") != std::string_view::npos || name.find(".groups.") != std::string_view::npos) {
    return "adapters of a matrix that is multiplied head by head are not built";
  }
  if (name.find("router") != std::string_view::npos) return "adapters of routers are not built";
  return "adapters of this kind of block are not built";
}

// The tensor's rows that the weight consists of; empty where it is stored otherwise than row by row.
std::vector<uint64_t> rows_of(const WeightEntry& entry, uint64_t cols) {
  std::vector<uint64_t> rows;
  if (entry.col_stride != 1 || entry.shape[1] != cols) return rows;
  for (uint64_t row = 0; row < entry.shape[0]; ++row) {
    const uint64_t start = row_start(entry, row);
    if (start % cols != 0) return {};
    rows.push_back(start / cols);
  }
  return rows;
}

}  // namespace

std::vector<AdaptableModule> adaptable_modules(const Model& model) {
  constexpr std::string_view kSuffix = ".weight";
  const Products products(model.weights());
  std::vector<AdaptableModule> modules;
  std::unordered_map<std::string, size_t> by_name;
  for (const MatrixSource& source : model.layer_matrices()) {
    std::string name = source.entry.file_name;
    if (name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
    const auto [found, is_new] = by_name.emplace(name, modules.size());
    if (is_new) {
      modules.push_back({std::move(name), 0, 0, {}, {}});
      if (source.tensor_shape.size() == 2) {
        modules.back().rows = source.tensor_shape[0];
        modules.back().cols = source.tensor_shape[1];
      }
    }
    AdaptableModule& module = modules[found->second];
    const PackedWeight* weight = products.find(source.entry.name);
    if (weight == nullptr) {
      module.why_not = why_not(source.entry.name);
      continue;
    }
    AdaptableModule::Part part{weight, module.cols == 0 ? std::vector<uint64_t>() : rows_of(source.entry, module.cols)};
    if (part.rows.empty()) module.why_not = "adapters of a matrix that is stored transposed or stacked are not built";
    module.parts.push_back(std::move(part));
  }
  return modules;
}

}  // namespace headrace
