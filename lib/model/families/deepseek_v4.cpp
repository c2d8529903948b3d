// DeepSeek-V4: attention to a window and to rows that runs of tokens are compressed into, several residual streams, experts
// that the first layers choose by token. Reference: transformers models/deepseek_v4. In the makers' files the kinds of
// layers are numbers (compress_ratios, num_hash_layers); YaRN scales the rotation of layers with a compressor alone, and
// leaves cosines and sines as long as they are.
#include <array>

#include "model/families/config_keys.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"
#include "tensor/stream_params.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "attention_bias",   "compress_rates",    "compress_ratios",     "compress_rope_theta",   "hc_eps",
    "hc_mult",          "hc_sinkhorn_iters", "index_head_dim",      "index_n_heads",         "index_topk",
    "layer_types",      "mlp_bias",          "mlp_layer_types",     "moe_intermediate_size", "n_routed_experts",
    "n_shared_experts", "norm_topk_prob",    "num_experts_per_tok", "num_hash_layers",       "o_groups",
    "o_lora_rank",      "q_lora_rank",       "qk_rope_head_dim",    "routed_scaling_factor", "scoring_func",
    "sliding_window",   "swiglu_limit",      "topk_method",
};

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kSparse = "compressed_sparse_attention";  // short runs that overlap, chosen by an indexer
constexpr const char* kHeavy = "heavily_compressed_attention";  // long runs

// What layers are: their names, or what the makers' numbers stand for.
Result<std::vector<std::string>> read_kinds(const ConfigReader& config, size_t num_layers) {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<std::string> kinds, config.texts("layer_types"));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ratios, config.integers("compress_ratios"));
  const char* key = "layer_types";
  if (!config.has(key) && config.has("compress_ratios")) {
    key = "compress_ratios";
    for (const int64_t ratio : ratios) {
      if (ratio != 0 && ratio != 4 && ratio != 128) return unsupported(config.place_of(key), "unknown ratio {}", ratio);
      kinds.push_back(ratio == 0 ? kSliding : ratio == 4 ? kSparse : kHeavy);
    }
    if (kinds.size() > num_layers) kinds.resize(num_layers);  // of layers that predict further ahead
  } else if (!config.has(key)) {
    for (size_t i = 0; i < num_layers; ++i) kinds.push_back(i > 1 && i % 2 == 1 ? kSparse : kHeavy);
  }
  if (kinds.size() != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", kinds.size(), num_layers);
  }
  for (const std::string& kind : kinds) {
    if (kind == kSliding || kind == kSparse || kind == kHeavy) continue;
    return unsupported(config.place_of(key), "unknown layer type '{}'", kind);
  }
  return kinds;
}

// Whether each layer's experts are chosen by token.
Result<std::vector<bool>> read_by_token(const ConfigReader& config, size_t num_layers) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.texts("mlp_layer_types"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, config.integer_or("num_hash_layers", 0, INT32_MAX, 3));
  std::vector<bool> out;
  if (!config.has("mlp_layer_types")) {
    for (size_t i = 0; i < num_layers; ++i) out.push_back(static_cast<int64_t>(i) < count);
    return out;
  }
  const std::string place = config.place_of("mlp_layer_types");
  if (types.size() != num_layers) return malformed(place, "{} entries for {} layers", types.size(), num_layers);
  for (const std::string& type : types) {
    if (type != "hash_moe" && type != "moe") return unsupported(place, "unknown layer type '{}'", type);
    out.push_back(type == "hash_moe");
  }
  return out;
}

// Of layers without a compressor, and with one.
struct Ropes {
  RopeSpec main, compress;
};

Result<Ropes> read_ropes(const ConfigReader& config, int32_t head_dim, int64_t max_positions) {
  HEADRACE_ASSIGN_OR_RETURN(const double theta, config.positive_or("rope_theta", 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const double run_theta, config.positive_or("compress_rope_theta", 160000.0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t dims, config.integer_or("qk_rope_head_dim", 2, head_dim, head_dim / 8));
  HEADRACE_ASSIGN_OR_RETURN(const double partial,
                            config.number_or("partial_rotary_factor", static_cast<double>(dims) / head_dim));
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader parameters, config.object(key));
  const bool nested = parameters.has("main") && parameters.has("compress");
  RopeConfig main, compress;
  if (nested) {
    HEADRACE_RETURN_IF_ERROR(parameters.check_known(std::array<std::string_view, 2>{"main", "compress"}));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader main_keys, parameters.object("main"));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader compress_keys, parameters.object("compress"));
    for (const ConfigReader* keys : {&main_keys, &compress_keys}) {
      constexpr const char* kPartial = "partial_rotary_factor";
      if (!keys->has(kPartial)) return malformed(keys->place_of(kPartial), "missing");
    }
    HEADRACE_ASSIGN_OR_RETURN(main, read_rope_parameters(main_keys, theta, max_positions, partial));
    HEADRACE_ASSIGN_OR_RETURN(compress, read_rope_parameters(compress_keys, run_theta, max_positions, partial));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(compress, read_rope_parameters(parameters, run_theta, max_positions, partial));
    main.theta = theta;
    compress.theta = run_theta;
    main.partial = compress.partial = partial;
    if (compress.scaling.type == "yarn" && !compress.scaling.attention_factor) compress.scaling.attention_factor = 1.0;
  }
  Ropes out;
  for (const auto& [from, to] : {std::pair(&main, &out.main), std::pair(&compress, &out.compress)}) {
    const auto rotary_dim = static_cast<int32_t>(head_dim * from->partial);
    HEADRACE_RETURN_IF_ERROR(config.only("qk_rope_head_dim", rotary_dim));
    auto rope = make_rope(from->theta, rotary_dim, from->scaling);
    if (!rope.ok()) return rope.status().within(config.place_of(key));
    *to = *rope;
    to->interleaved = true;
  }
  return out;
}

Result<CompressedAttention> read_attention(const ConfigReader& config, const GqaAttention& sizes, float eps) {
  CompressedAttention out;
  out.num_heads = sizes.num_heads;
  out.head_dim = sizes.head_dim;
  out.scale = sizes.scale;
  out.eps = eps;
  const auto read = [&](const char* key, int64_t fallback, int32_t& target) -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, config.integer_or(key, 1, INT32_MAX, fallback));
    target = static_cast<int32_t>(value);
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(read("q_lora_rank", 1024, out.q_rank));
  HEADRACE_RETURN_IF_ERROR(read("sliding_window", 128, out.window));
  HEADRACE_RETURN_IF_ERROR(read("o_groups", 8, out.output_groups));
  if (out.num_heads % out.output_groups != 0) {
    return malformed(config.place_of("o_groups"), "{} heads are no multiple of {}", out.num_heads, out.output_groups);
  }
  HEADRACE_RETURN_IF_ERROR(read("o_lora_rank", 1024, out.output_rank));
  RunIndexer& indexer = out.indexer.emplace();
  HEADRACE_RETURN_IF_ERROR(read("index_n_heads", 64, indexer.num_heads));
  HEADRACE_RETURN_IF_ERROR(read("index_head_dim", 128, indexer.head_dim));
  HEADRACE_RETURN_IF_ERROR(read("index_topk", 512, indexer.top_k));
  return out;
}

// attention: with the indexer that layers of short runs have.
Status set_attention(const ConfigReader& config, CompressedAttention attention, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, read_kinds(config, spec.layers.size()));
  HEADRACE_ASSIGN_OR_RETURN(const Ropes ropes, read_ropes(config, attention.head_dim, spec.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader rates, config.object("compress_rates"));
  HEADRACE_RETURN_IF_ERROR(rates.check_known(std::array<std::string_view, 2>{kSparse, kHeavy}));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t short_run, rates.integer_or(kSparse, 1, INT32_MAX, 4));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t long_run, rates.integer_or(kHeavy, 1, INT32_MAX, 128));
  for (size_t i = 0; i < kinds.size(); ++i) {
    CompressedAttention layer = attention;
    layer.rope = kinds[i] == kSliding ? ropes.main : ropes.compress;
    if (kinds[i] == kSparse) layer.compressor = {static_cast<int32_t>(short_run), true};
    if (kinds[i] == kHeavy) layer.compressor = {static_cast<int32_t>(long_run), false};
    if (kinds[i] != kSparse) layer.indexer.reset();
    spec.layers[i].attention = std::move(layer);
  }
  return {};
}

Status set_feed_forward(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(MixtureOfExperts moe, read_grouped_experts(config, {256, 6, 2048, 1, 1, 1, 1.5}));
  HEADRACE_RETURN_IF_ERROR(config.only("n_shared_experts", 1));
  HEADRACE_RETURN_IF_ERROR(config.only("norm_topk_prob", true));
  HEADRACE_RETURN_IF_ERROR(config.only("topk_method", "noaux_tc"));
  HEADRACE_RETURN_IF_ERROR(config.only("hidden_act", "silu"));
  HEADRACE_RETURN_IF_ERROR(config.only("intermediate_size", moe.intermediate_size));
  HEADRACE_ASSIGN_OR_RETURN(const std::string score, config.text_or("scoring_func", "sqrtsoftplus"));
  if (score != "sqrtsoftplus" && score != "sigmoid") {
    return unsupported(config.place_of("scoring_func"), "unknown function '{}'", score);
  }
  HEADRACE_ASSIGN_OR_RETURN(const double limit, config.positive_or("swiglu_limit", 10.0));
  moe.activation = Activation::kClampedSilu;
  moe.activation_limit = static_cast<float>(limit);
  moe.router.score = score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSqrtSoftplus;
  moe.router.sum_floor = 0.0f;
  moe.router.sum_added = 1e-20f;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> by_token, read_by_token(config, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    moe.router.by_token = by_token[i];
    moe.router.correction = !by_token[i];
    spec.layers[i].feed_forward = moe;
  }
  return {};
}

Result<ModelSpec> deepseek_v4_from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("attention_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("mlp_bias", false));
  HEADRACE_RETURN_IF_ERROR(config.only("num_key_value_heads", 1));
  DenseDefaults defaults{129280, 4096, 2048, 43, 64, 1, 512, 1048576};
  defaults.experts = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "deepseek_v4";
  HEADRACE_ASSIGN_OR_RETURN(CompressedAttention attention, read_attention(config, gqa(spec.layers[0]), spec.norm_eps));
  HEADRACE_RETURN_IF_ERROR(set_attention(config, std::move(attention), spec));
  HEADRACE_RETURN_IF_ERROR(set_feed_forward(config, spec));
  HyperConnections hyper;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t streams, config.integer_or("hc_mult", 1, kMostGatedStreams, 4));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t iterations, config.integer_or("hc_sinkhorn_iters", 1, 1000, 20));
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.number_or("hc_eps", 1e-6));
  hyper.num_streams = static_cast<int32_t>(streams);
  hyper.iterations = static_cast<int32_t>(iterations);
  hyper.eps = static_cast<float>(eps);
  spec.streams = hyper;
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_down", "attn.wq_a"},
    {"q_latent_norm", "attn.q_norm"},
    {"q_proj", "attn.wq_b"},
    {"k_proj", "attn.wkv"},
    {"k_norm", "attn.kv_norm"},
    {"k_norm", "attn.norm"},  // as transformers writes it
    {"sinks", "attn.attn_sink"},
    {"groups.*", "attn.wo_a"},
    {"o_proj", "attn.wo_b"},
    {"compressor.value", "attn.compressor.wkv"},
    {"compressor.gate", "attn.compressor.wgate"},
    {"compressor.bias", "attn.compressor.ape"},
    {"compressor.norm", "attn.compressor.norm"},
    {"indexer.compressor.value", "attn.indexer.compressor.wkv"},
    {"indexer.compressor.gate", "attn.indexer.compressor.wgate"},
    {"indexer.compressor.bias", "attn.indexer.compressor.ape"},
    {"indexer.compressor.norm", "attn.indexer.compressor.norm"},
    {"indexer.q_proj", "attn.indexer.wq_b"},
    {"indexer.head_weights", "attn.indexer.weights_proj"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"hyper.attention.fn.weight", "hc_attn_fn"},
    {"hyper.attention.base", "hc_attn_base"},
    {"hyper.attention.scale", "hc_attn_scale"},
    {"hyper.feed_forward.fn.weight", "hc_ffn_fn"},
    {"hyper.feed_forward.base", "hc_ffn_base"},
    {"hyper.feed_forward.scale", "hc_ffn_scale"},
    {"router", "ffn.gate"},
    {"router.correction", "ffn.gate.bias"},
    {"router.by_token", "ffn.gate.tid2eid"},
    {"experts.*.gate_proj", "ffn.experts.*.w1"},
    {"experts.*.up_proj", "ffn.experts.*.w3"},
    {"experts.*.down_proj", "ffn.experts.*.w2"},
    {"shared.gate_proj", "ffn.shared_experts.w1"},
    {"shared.up_proj", "ffn.shared_experts.w3"},
    {"shared.down_proj", "ffn.shared_experts.w2"},
};
// The makers' names, and what transformers writes.
constexpr NamePair kTop[] = {
    {"embed", "embed"},
    {"embed", "model.embed_tokens"},
    {"final_norm", "norm"},
    {"final_norm", "model.norm"},
    {"lm_head", "head"},
    {"stream_head.fn.weight", "hc_head_fn"},
    {"stream_head.fn.weight", "model.hc_head.hc_fn"},
    {"stream_head.base", "hc_head_base"},
    {"stream_head.base", "model.hc_head.hc_base"},
    {"stream_head.scale", "hc_head_scale"},
    {"stream_head.scale", "model.hc_head.hc_scale"},
};
constexpr std::string_view kFurtherAhead[] = {"mtp.", "model.mtp."};

WeightNaming names(const TensorFile& weights) {
  const bool makers = has_prefix(weights, "layers.");
  return {makers ? "layers." : "model.layers.", kLayer, kTop, kFurtherAhead, {}, true};
}

}  // namespace

const Family kDeepseekV4Family = {
    "deepseek_v4", "DeepseekV4ForCausalLM", "deepseek_v4", "", deepseek_v4_from_config, nullptr, names, nullptr};

}  // namespace headrace
