#include "model/families/moe_decoder.h"

#include <algorithm>

#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr std::string_view kGgufKeys[] = {
    "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "expert_shared_count",        "expert_weights_scale",
    "expert_weights_norm",        "expert_gating_func",
    "expert_group_count",         "expert_group_used_count",
    "leading_dense_block_count",  "interleave_moe_layer_step",
    "nextn_predict_layers",
};

constexpr int64_t kMaxExperts = int64_t{1} << 14;
constexpr int64_t kMaxSize = int64_t{1} << 22;

}  // namespace

void set_experts(ModelSpec& spec, const MixtureOfExperts& experts, const std::function<bool(size_t layer)>& sparse) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (sparse(i)) spec.layers[i].feed_forward = experts;
  }
}

Result<std::vector<bool>> read_sparse_layers(const ConfigReader& config, size_t num_layers, size_t num_dense) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.texts("mlp_layer_types"));
  std::vector<bool> sparse;
  if (!config.has("mlp_layer_types")) {
    for (size_t i = 0; i < num_layers; ++i) sparse.push_back(i >= num_dense);
    return sparse;
  }
  if (types.size() != num_layers) {
    return malformed(config.place_of("mlp_layer_types"), "{} entries for {} layers", types.size(), num_layers);
  }
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse") {
      return unsupported(config.place_of("mlp_layer_types"), "unknown layer type '{}'", type);
    }
    sparse.push_back(type == "sparse");
  }
  return sparse;
}

Result<MixtureOfExperts> read_grouped_experts(const ConfigReader& config, const GroupedExpertDefaults& defaults,
                                              const GroupedExpertKeys& keys) {
  MixtureOfExperts moe;
  RouterSpec& router = moe.router;
  const auto read = [&](const char* key, int64_t low, int64_t high, int64_t fallback, auto& out) -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, config.integer_or(key, low, high, fallback));
    out = static_cast<int32_t>(value);
    return {};
  };
  int32_t num_shared = 0;
  HEADRACE_RETURN_IF_ERROR(read(keys.num_experts, 1, kMaxExperts, defaults.num_experts, router.num_experts));
  HEADRACE_RETURN_IF_ERROR(read(keys.num_groups, 1, router.num_experts, defaults.num_groups, router.num_groups));
  if (router.num_experts % router.num_groups != 0) {
    return malformed(config.place_of(keys.num_groups), "{} experts are no multiple of {} groups", router.num_experts,
                     router.num_groups);
  }
  HEADRACE_RETURN_IF_ERROR(read("topk_group", 1, router.num_groups, defaults.top_groups, router.top_groups));
  const int32_t in_groups = router.num_experts / router.num_groups * router.top_groups;
  HEADRACE_RETURN_IF_ERROR(read(keys.top_k, 1, in_groups, defaults.top_k, router.top_k));
  HEADRACE_RETURN_IF_ERROR(
      read("moe_intermediate_size", 1, kMaxSize, defaults.intermediate_size, moe.intermediate_size));
  HEADRACE_RETURN_IF_ERROR(read(keys.num_shared, 0, 1024, defaults.num_shared, num_shared));
  moe.shared_intermediate_size = num_shared * moe.intermediate_size;
  HEADRACE_ASSIGN_OR_RETURN(router.normalize, config.boolean_or(keys.normalize, true));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, config.number_or("routed_scaling_factor", defaults.scale));
  router.scale = static_cast<float>(scale);
  router.score = RouterScore::kSigmoid;
  router.correction = true;
  router.sum_floor = 1e-20f;
  HEADRACE_ASSIGN_OR_RETURN(moe.activation, read_activation(config, "hidden_act", "silu"));
  return moe;
}

std::span<const std::string_view> moe_gguf_keys() { return kGgufKeys; }

Status set_gguf_experts(const GgufReader& gguf, ModelSpec& spec, MixtureOfExperts experts) {
  RouterSpec& router = experts.router;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t extra_layers, gguf.integer_or("nextn_predict_layers", 0, INT32_MAX, 0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t blocks, gguf.integer("block_count", 1, INT32_MAX));
  if (blocks != static_cast<int64_t>(spec.layers.size()) + extra_layers) {
    return unsupported(gguf.key("nextn_predict_layers"),
                       "files with layers that predict further ahead are not supported");
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, gguf.integer("expert_count", 1, kMaxExperts));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used, gguf.integer("expert_used_count", 1, count));
  const char* const width_key =
      gguf.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t expert_inner, gguf.integer(width_key, 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t groups, gguf.integer_or("expert_group_count", 1, count, 1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t used_groups, gguf.integer_or("expert_group_used_count", 1, groups, groups));
  HEADRACE_ASSIGN_OR_RETURN(const double scale, gguf.number_or("expert_weights_scale", 1.0));
  HEADRACE_ASSIGN_OR_RETURN(router.normalize,
                            gguf.file().get_bool_or(gguf.key("expert_weights_norm"), router.normalize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t function, gguf.integer_or("expert_gating_func", 0, 3, 0));
  if (function == 3) {
    return unsupported(gguf.key("expert_gating_func"), "a softmax over the chosen experts is not supported here");
  }
  if (function != 0) router.score = function == 1 ? RouterScore::kSoftmax : RouterScore::kSigmoid;
  router.num_experts = static_cast<int32_t>(count);
  router.top_k = static_cast<int32_t>(used);
  router.num_groups = static_cast<int32_t>(groups);
  router.top_groups = static_cast<int32_t>(used_groups);
  // Zero stands for "not scaled".
  router.scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  experts.intermediate_size = static_cast<int32_t>(expert_inner);
  const GgufFile& file = gguf.file();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto find = [&](std::string_view name) { return file.find(fmt::format("blk.{}.{}", i, name)); };
    if (find("ffn_gate_inp.weight") == nullptr) continue;
    MixtureOfExperts moe = experts;
    moe.router.bias = find("ffn_gate_inp.bias") != nullptr;
    moe.router.correction = find("exp_probs_b.bias") != nullptr || find("exp_probs_b") != nullptr;
    moe.bias = find("ffn_down_exps.bias") != nullptr;
    if (const TensorEntry* shared = find("ffn_up_shexp.weight")) {
      if (shared->shape.size() != 2 || shared->shape[0] > static_cast<uint64_t>(kMaxSize)) {
        return malformed(shared->name, "not a matrix of a feed-forward");
      }
      moe.shared_intermediate_size = static_cast<int32_t>(shared->shape[0]);
      moe.shared_gate = find("ffn_gate_inp_shexp.weight") != nullptr;
    }
    spec.layers[i].feed_forward = moe;
  }
  return {};
}

namespace {
constexpr NamePair kHfLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"feed_forward_norm", "post_attention_layernorm"},
    {"router", "mlp.gate"},
    {"router.correction", "mlp.gate.e_score_correction_bias"},
    {"experts.*.gate_proj", "mlp.experts.*.gate_proj"},
    {"experts.*.up_proj", "mlp.experts.*.up_proj"},
    {"experts.*.down_proj", "mlp.experts.*.down_proj"},
    {"shared.gate_proj", "mlp.shared_experts.gate_proj"},
    {"shared.up_proj", "mlp.shared_experts.up_proj"},
    {"shared.down_proj", "mlp.shared_experts.down_proj"},
};

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"q_norm", "attn_q_norm"},
    {"k_norm", "attn_k_norm"},
    {"sinks", "attn_sinks"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"router", "ffn_gate_inp"},
    {"router.correction", "exp_probs_b.bias"},
    {"router.correction", "exp_probs_b"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
    // Files of the first months had a tensor for each expert.
    {"experts.*.gate_proj", "ffn_gate.*"},
    {"experts.*.up_proj", "ffn_up.*"},
    {"experts.*.down_proj", "ffn_down.*"},
    {"shared.gate_proj", "ffn_gate_shexp"},
    {"shared.up_proj", "ffn_up_shexp"},
    {"shared.down_proj", "ffn_down_shexp"},
    {"shared.router", "ffn_gate_inp_shexp"},
};
constexpr std::string_view kGgufIgnored[] = {"rope_freqs.weight"};
}  // namespace

WeightNaming moe_hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTopNames, {}, kHfSurplus, true}; }
WeightNaming moe_gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, kGgufIgnored}; }

}  // namespace headrace
