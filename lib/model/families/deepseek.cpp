// DeepSeek-V2, V3 (R1 among them) and GLM-4.7-Flash: multi-head latent attention, experts in groups with shared ones.
// Reference: transformers models/deepseek_v2, deepseek_v3, glm4_moe_lite. The norms of the latents have an epsilon of
// their own there. In GGUF all go by deepseek2.
#include "model/families/deepseek.h"

#include <cmath>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr float kLatentEps = 1e-6f;

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",   "first_k_dense_replace",
    "kv_lora_rank",     "mlp_bias",
    "mlp_layer_types",  "moe_intermediate_size",
    "moe_layer_freq",   "n_group",
    "n_routed_experts", "n_shared_experts",
    "norm_topk_prob",   "num_experts_per_tok",
    "q_lora_rank",      "qk_head_dim",
    "qk_nope_head_dim", "qk_rope_head_dim",
    "rope_interleave",  "routed_scaling_factor",
    "scoring_func",     "topk_group",
    "topk_method",      "v_head_dim",
};

// scale = 1 / sqrt(nope + rope), times the square of yarn's magnitude.
float attention_scale(int32_t head_dim, double magnitude) {
  return static_cast<float>(magnitude * magnitude / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace

Result<LatentAttention> read_latent(const ConfigReader& config, const LatentDefaults& defaults, int64_t max_positions) {
  LatentAttention out;
  const auto read = [&](const char* key, int64_t low, int64_t fallback, int32_t& target) -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, config.integer_or(key, low, 1 << 18, fallback));
    target = static_cast<int32_t>(value);
    return {};
  };
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, config.integer("num_attention_heads", 1, 1 << 14));
  out.num_heads = static_cast<int32_t>(heads);
  // null means that queries have no latent.
  HEADRACE_RETURN_IF_ERROR(
      read("q_lora_rank", 1, config.contains_null("q_lora_rank") ? 0 : defaults.q_rank, out.q_rank));
  HEADRACE_RETURN_IF_ERROR(read("kv_lora_rank", 1, defaults.rank, out.rank));
  HEADRACE_RETURN_IF_ERROR(read("qk_nope_head_dim", 1, defaults.nope_dim, out.nope_dim));
  HEADRACE_RETURN_IF_ERROR(read("qk_rope_head_dim", 1, defaults.rope_dim, out.rope_dim));
  HEADRACE_RETURN_IF_ERROR(read("v_head_dim", 1, defaults.v_dim, out.v_dim));
  HEADRACE_RETURN_IF_ERROR(config.only("qk_head_dim", out.nope_dim + out.rope_dim));
  HEADRACE_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  out.latent_bias = out.output_bias = bias;
  out.latent_norm_eps = kLatentEps;
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters, read_rope(config, 10000.0, max_positions));
  auto rope = make_rope(parameters.theta, out.rope_dim, parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  out.rope = *rope;
  HEADRACE_ASSIGN_OR_RETURN(out.rope.interleaved, config.boolean_or("rope_interleave", true));
  double magnitude = 1.0;
  const RopeScaling& scaling = parameters.scaling;
  if (scaling.type != "default" && scaling.mscale_all_dim.value_or(0) != 0 && scaling.factor > 1) {
    magnitude = 0.1 * *scaling.mscale_all_dim * std::log(scaling.factor) + 1.0;
  }
  out.scale = attention_scale(out.nope_dim + out.rope_dim, magnitude);
  return out;
}

Result<ModelSpec> read_deepseek(const ConfigReader& config, const LatentDefaults& latent, const char* architecture,
                                std::span<const std::string_view> more_keys) {
  std::vector<std::string_view> keys(std::begin(kOwnKeys), std::end(kOwnKeys));
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, keys));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("moe_layer_freq", 1));
  DenseDefaults defaults;
  defaults.num_kv_heads = -1;
  defaults.head_dim = 64;  // of the rotated part; unused
  defaults.max_position_embeddings = latent.max_position_embeddings;
  defaults.norm_eps = latent.norm_eps;
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = architecture;
  HEADRACE_ASSIGN_OR_RETURN(const LatentAttention attention, read_latent(config, latent, spec.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation, read_activation(config, "hidden_act", "silu"));
  for (LayerSpec& layer : spec.layers) {
    layer.attention = attention;
    dense(layer).activation = activation;
  }
  return spec;
}

namespace {

Result<ModelSpec> deepseek_v2_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("scoring_func", "softmax"));
  // The class in transformers does not divide by the sum whatever the key says; the makers' own code does.
  HEADRACE_RETURN_IF_ERROR(config.only("norm_topk_prob", false));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_deepseek(config, {.max_position_embeddings = 2048}, "deepseek_v2"));
  GroupedExpertDefaults defaults{64, 6, 1407, 2};
  HEADRACE_ASSIGN_OR_RETURN(MixtureOfExperts moe, read_grouped_experts(config, defaults));
  moe.router.score = RouterScore::kSoftmax;
  moe.router.correction = false;
  moe.router.normalize = false;
  moe.router.group_score = GroupScore::kMax;
  HEADRACE_ASSIGN_OR_RETURN(const std::string method, config.text_or("topk_method", "greedy"));
  if (method == "greedy") {
    moe.router.num_groups = moe.router.top_groups = 1;
  } else if (method != "group_limited_greedy") {
    return unsupported(config.place_of("topk_method"), "unknown method '{}'", method);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("first_k_dense_replace", 0, INT32_MAX, 0));
  set_experts(spec, moe, [&](size_t layer) { return static_cast<int64_t>(layer) >= num_dense; });
  return spec;
}

Result<ModelSpec> deepseek_v3_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("scoring_func", "sigmoid"));
  HEADRACE_RETURN_IF_ERROR(config.only("topk_method", "noaux_tc"));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_deepseek(config, {}, "deepseek_v3"));
  GroupedExpertDefaults defaults{256, 8, 2048, 1, 8, 4, 2.5};
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_grouped_experts(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_dense, config.integer_or("first_k_dense_replace", 0, INT32_MAX, 3));
  set_experts(spec, moe, [&](size_t layer) { return static_cast<int64_t>(layer) >= num_dense; });
  return spec;
}

Result<ModelSpec> glm4_moe_lite_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(config.only("scoring_func", "sigmoid"));
  HEADRACE_RETURN_IF_ERROR(config.only("topk_method", "noaux_tc"));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec,
                            read_deepseek(config, {768, 512, 192, 64, 256, 202752, 1e-5}, "glm4_moe_lite"));
  GroupedExpertDefaults defaults{64, 4, 1536, 1, 1, 1, 1.8};
  HEADRACE_ASSIGN_OR_RETURN(const MixtureOfExperts moe, read_grouped_experts(config, defaults));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> sparse, read_sparse_layers(config, spec.layers.size(), 1));
  set_experts(spec, moe, [&](size_t layer) { return sparse[layer]; });
  return spec;
}

constexpr std::string_view kGgufLatentKeys[] = {
    "attention.q_lora_rank",      "attention.kv_lora_rank",           "attention.key_length_mla",
    "attention.value_length_mla", "rope.scaling.yarn_log_multiplier",
};

}  // namespace

Result<ModelSpec> read_deepseek_gguf(const GgufReader& gguf, std::span<const std::string_view> more_keys) {
  std::vector<std::string_view> keys(moe_gguf_keys().begin(), moe_gguf_keys().end());
  keys.insert(keys.end(), std::begin(kGgufLatentKeys), std::end(kGgufLatentKeys));
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec,
                            read_dense_gguf(gguf, {.experts = true, .more_keys = keys, .any_value_dim = true}));
  spec.architecture = "deepseek2";
  HEADRACE_ASSIGN_OR_RETURN(
      const int64_t extra, gguf.integer_or("nextn_predict_layers", 0, static_cast<int64_t>(spec.layers.size()) - 1, 0));
  spec.layers.resize(spec.layers.size() - static_cast<size_t>(extra));
  LatentAttention attention;
  attention.num_heads = gqa(spec.layers[0]).num_heads;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t q_rank, gguf.integer_or("attention.q_lora_rank", 0, 1 << 18, 0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rank, gguf.integer("attention.kv_lora_rank", 1, 1 << 18));
  if (!gguf.has("attention.key_length_mla")) {
    return unsupported(gguf.key("attention.key_length_mla"),
                       "missing: files from before the split of attn_kv_b are not supported");
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rope_dim, gguf.integer("rope.dimension_count", 1, 1 << 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t key_dim, gguf.integer("attention.key_length_mla", rope_dim + 1, 1 << 12));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value_dim, gguf.integer("attention.value_length_mla", 1, 1 << 12));
  attention.q_rank = static_cast<int32_t>(q_rank);
  attention.rank = static_cast<int32_t>(rank);
  attention.rope_dim = static_cast<int32_t>(rope_dim);
  attention.nope_dim = static_cast<int32_t>(key_dim - rope_dim);
  attention.v_dim = static_cast<int32_t>(value_dim);
  attention.latent_norm_eps = kLatentEps;
  HEADRACE_ASSIGN_OR_RETURN(RopeScaling scaling, gguf.rope_scaling(spec.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(const double log_multiplier, gguf.number_or("rope.scaling.yarn_log_multiplier", 0));
  double magnitude = 1.0;
  if (scaling.type == "yarn") {
    // Every published file has mscale equal to mscale_all_dim, so that cosines and sines keep their length.
    scaling.attention_factor = 1.0;
    if (scaling.factor > 1) magnitude += log_multiplier * std::log(scaling.factor);
  }
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base", 10000.0));
  auto rope = make_rope(theta, attention.rope_dim, scaling);
  if (!rope.ok()) return rope.status().within(gguf.key("rope"));
  attention.rope = *rope;
  attention.rope.interleaved = true;
  attention.scale = attention_scale(attention.nope_dim + attention.rope_dim, magnitude);
  for (LayerSpec& layer : spec.layers) layer.attention = attention;

  // Files of V2 say nothing of the scores: a softmax. V3's have a correction, and older ones no function either.
  const GgufFile& file = gguf.file();
  MixtureOfExperts moe;
  moe.router.sum_floor = 1e-20f;
  bool corrected = false;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    corrected = corrected || file.find(fmt::format("blk.{}.exp_probs_b.bias", i)) != nullptr;
  }
  moe.router.score = corrected ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  moe.router.group_score = corrected ? GroupScore::kTopTwoSum : GroupScore::kMax;
  HEADRACE_RETURN_IF_ERROR(set_gguf_experts(gguf, spec, moe));
  return spec;
}

namespace {

Result<ModelSpec> deepseek_from_gguf(const GgufReader& gguf) { return read_deepseek_gguf(gguf, {}); }

constexpr NamePair kHfLayer[] = {
    {"q_down", "self_attn.q_a_proj"},
    {"q_latent_norm", "self_attn.q_a_layernorm"},
    {"latent", "self_attn.kv_a_proj_with_mqa"},
    {"k_rope", "self_attn.kv_a_proj_with_mqa"},
    {"latent_norm", "self_attn.kv_a_layernorm"},
    {"heads.*.k_up", "self_attn.kv_b_proj", TensorForm::kSwapped},
    {"heads.*.v_up", "self_attn.kv_b_proj"},
    {"indexer.q_proj", "self_attn.indexer.wq_b"},
    {"indexer.k_proj", "self_attn.indexer.wk"},
    {"indexer.head_weights", "self_attn.indexer.weights_proj"},
    {"indexer.k_norm", "self_attn.indexer.k_norm"},
    {"o_proj", "self_attn.o_proj"},
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
    {"q_proj", "self_attn.q_b_proj"},
    {"q_proj", "self_attn.q_proj"},  // where queries have no latent
};

}  // namespace

WeightNaming deepseek_hf_names(const TensorFile&) {
  return {"model.layers.", kHfLayer, kHfTopNames, {}, kHfSurplus, true};
}

namespace {

constexpr NamePair kGgufLayer[] = {
    {"q_down", "attn_q_a"},
    {"q_latent_norm", "attn_q_a_norm"},
    {"latent", "attn_kv_a_mqa"},
    {"k_rope", "attn_kv_a_mqa"},
    {"latent_norm", "attn_kv_a_norm"},
    {"heads.*.k_up", "attn_k_b"},
    {"heads.*.v_up", "attn_v_b"},
    {"indexer.q_proj", "indexer.attn_q_b"},
    {"indexer.k_proj", "indexer.attn_k"},
    {"indexer.head_weights", "indexer.proj"},
    {"indexer.k_norm", "indexer.k_norm"},
    {"o_proj", "attn_output"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"router", "ffn_gate_inp"},
    {"router.correction", "exp_probs_b.bias"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
    {"shared.gate_proj", "ffn_gate_shexp"},
    {"shared.up_proj", "ffn_up_shexp"},
    {"shared.down_proj", "ffn_down_shexp"},
    {"q_proj", "attn_q_b"},
    {"q_proj", "attn_q"},
};

}  // namespace

WeightNaming deepseek_gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, {}, true}; }

const Family kDeepseekV2Family = {"deepseek_v2",     "DeepseekV2ForCausalLM", "deepseek_v2",
                                  "deepseek2",       deepseek_v2_from_config, deepseek_from_gguf,
                                  deepseek_hf_names, deepseek_gguf_names};
const Family kDeepseekV3Family = {"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", "", deepseek_v3_from_config,
                                  nullptr,       deepseek_hf_names,       nullptr};
const Family kGlm4MoeLiteFamily = {
    "glm4_moe_lite", "Glm4MoeLiteForCausalLM", "glm4_moe_lite", "", glm4_moe_lite_from_config,
    nullptr,         deepseek_hf_names,        nullptr};

}  // namespace headrace
