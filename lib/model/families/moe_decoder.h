// What decoders with mixtures of experts have in common, on top of dense_decoder.h.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "model/families/dense_decoder.h"

namespace headrace {

// The layers that `sparse` names get the experts; their activation is that of the dense layers.
void set_experts(ModelSpec& spec, const MixtureOfExperts& experts, const std::function<bool(size_t layer)>& sparse);

// "dense" or "sparse" for each layer, of mlp_layer_types; the first `num_dense` layers are dense without it.
Result<std::vector<bool>> read_sparse_layers(const ConfigReader& config, size_t num_layers, size_t num_dense);

// n_routed_experts, n_group, topk_group, norm_topk_prob, routed_scaling_factor, ... as DeepSeek-V3 and its followers
// have them: sigmoid scores with a correction, the sum of the chosen ones kept off zero. Shared experts are one
// feed-forward.
struct GroupedExpertDefaults {
  int64_t num_experts = 0, top_k = 0, intermediate_size = 0, num_shared = 0, num_groups = 1, top_groups = 1;
  double scale = 1.0;
};
struct GroupedExpertKeys {
  const char* num_experts = "n_routed_experts";
  const char* top_k = "num_experts_per_tok";
  const char* num_groups = "n_group";
  const char* num_shared = "n_shared_experts";
  const char* normalize = "norm_topk_prob";
};
Result<MixtureOfExperts> read_grouped_experts(const ConfigReader& config, const GroupedExpertDefaults& defaults,
                                              const GroupedExpertKeys& keys = {});

// GGUF: which layers have experts, shared ones, biases and corrections is read from the tensor table, sizes and the
// router from the metadata. `experts` holds what the family fixes; scores follow expert_gating_func where it is given.
Status set_gguf_experts(const GgufReader& gguf, ModelSpec& spec, MixtureOfExperts experts);
// Keys of GGUF metadata that set_gguf_experts reads, or that follow from the tensor table.
std::span<const std::string_view> moe_gguf_keys();

WeightNaming moe_gguf_names();

// Names that most files use: self_attn.*, mlp.gate, mlp.experts.N.*, mlp.shared_experts.*.
WeightNaming moe_hf_names(const TensorFile& weights);

}  // namespace headrace
