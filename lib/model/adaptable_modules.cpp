#include "model/adaptable_modules.h"

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
  void add(const char* part, const LinearWeight& weight, const std::string& group = {}) {
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
  void add(const SparseLatentWeights& weights) {
    add(weights.latent);
    add("indexer.q_proj", weights.indexer.q);
    add("indexer.k_proj", weights.indexer.k);
    add("indexer.head_weights", weights.indexer.head_weights);
  }
  void add(const ShortConvWeights& weights) {
    add("conv_b", weights.b);
    add("conv_c", weights.c);
    add("conv_x", weights.x);
    add("mixer_out", weights.out);
  }
  void add(const MambaWeights& weights) {
    add("mixer_x", weights.x);
    add("mixer_z", weights.z);
    add("step_in", weights.step_in);
    add("state_b", weights.b);
    add("state_c", weights.c);
    add("step", weights.step);
    add("mixer_out", weights.out);
  }
  void add(const Mamba2Weights& weights) {
    add("mixer_z", weights.z);
    add("mixer_xbc", weights.xbc);
    add("mixer_step", weights.step);
    add("mixer_out", weights.out);
  }
  void add(const GatedDeltaWeights& weights) {
    add("mixer_q", weights.q);
    add("mixer_k", weights.k);
    add("mixer_v", weights.v);
    add("mixer_z", weights.z);
    add("mixer_alpha", weights.a);
    add("mixer_beta", weights.b);
    add("mixer_out", weights.out);
  }
  void add(const KimiDeltaWeights& weights) {
    add("mixer_q", weights.q);
    add("mixer_k", weights.k);
    add("mixer_v", weights.v);
    add("decay_down", weights.decay_down);
    add("decay_up", weights.decay_up);
    add("mixer_beta", weights.step);
    add("gate_down", weights.gate_down);
    add("gate_up", weights.gate_up);
    add("mixer_out", weights.out);
  }
  void add(const LightningWeights& weights) {
    add("mixer_q", weights.q);
    add("mixer_k", weights.k);
    add("mixer_v", weights.v);
    add("mixer_gate", weights.gate);
    add("mixer_out", weights.out);
  }
  void add(const AttentionBesideMambaWeights& weights) {
    add(weights.attention);
    add(weights.mamba);
  }
  void add(const NoAttentionWeights&) {}
  void add(const DenseWeights& weights, const std::string& group) {
    add("gate_proj", weights.gate, group);
    add("up_proj", weights.up, group);
    add("down_proj", weights.down, group);
  }
  void add(const MoeWeights& weights, const std::string&) {
    for (size_t e = 0; e < weights.experts.size(); ++e) add(weights.experts[e], fmt::format("experts.{}.", e));
    add(weights.shared, "shared.");
    add("shared.router", weights.shared_gate);
  }
  void add(const DenseBesideExpertsWeights& weights, const std::string&) {
    add(weights.dense, "");
    add(weights.experts, "");
  }
  void add(const NoFeedForwardWeights&, const std::string&) {}

  std::string prefix_;
  std::unordered_map<std::string, const PackedWeight*> weights_;
};

// Why nothing is added to the products of a weight that is none of the above.
std::string_view why_not(std::string_view name) {
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

std::unordered_map<std::string, AdaptableModule> adaptable_modules(const Model& model,
                                                                   const std::unordered_set<std::string_view>& wanted) {
  constexpr std::string_view kSuffix = ".weight";
  const Products products(model.weights());
  std::unordered_map<std::string, AdaptableModule> modules;
  for (const MatrixSource& source : model.layer_matrices()) {
    std::string name = source.entry.file_name;
    if (name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
    if (!wanted.contains(name)) continue;
    const auto [found, is_new] = modules.try_emplace(std::move(name));
    AdaptableModule& module = found->second;
    const std::vector<uint64_t>& shape = source.tensor_shape;
    if (is_new && (shape.size() == 2 || shape.size() == 3)) {
      module.is_stack = shape.size() == 3;
      module.matrices = module.is_stack ? shape[0] : 1;
      module.rows = shape[shape.size() - 2];
      module.cols = shape.back();
    }
    const PackedWeight* weight = products.find(source.entry.name);
    if (weight == nullptr) {
      module.why_not = why_not(source.entry.name);
      continue;
    }
    AdaptableModule::Part part{weight, 0, {}};
    if (module.cols > 0) part.rows = rows_of(source.entry, module.cols);
    if (part.rows.empty()) {
      module.why_not = "adapters of a matrix that is stored transposed are not built";
      continue;
    }
    part.matrix = part.rows[0] / module.rows;
    for (uint64_t& row : part.rows) row -= part.matrix * module.rows;
    module.parts.push_back(std::move(part));
  }
  return modules;
}

}  // namespace headrace
