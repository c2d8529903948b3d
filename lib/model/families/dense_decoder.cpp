#include "model/families/dense_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format_full.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

// Sizes under the names of config.json, each checked for range.
struct DenseSizes {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, max_position_embeddings = 0;
  double norm_eps = 0;
};

ModelSpec make_dense_spec(const DenseSizes& sizes) {
  ModelSpec spec;
  spec.vocab_size = static_cast<int32_t>(sizes.vocab_size);
  spec.hidden_size = static_cast<int32_t>(sizes.hidden_size);
  spec.max_position_embeddings = static_cast<int32_t>(sizes.max_position_embeddings);
  spec.norm_eps = static_cast<float>(sizes.norm_eps);
  GqaAttention attention;
  attention.num_heads = static_cast<int32_t>(sizes.num_heads);
  attention.num_kv_heads = static_cast<int32_t>(sizes.num_kv_heads);
  attention.head_dim = static_cast<int32_t>(sizes.head_dim);
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.head_dim)));
  DenseFeedForward feed_forward;
  feed_forward.intermediate_size = static_cast<int32_t>(sizes.intermediate_size);
  LayerSpec layer;
  layer.attention = attention;
  layer.feed_forward = feed_forward;
  spec.layers.assign(static_cast<size_t>(sizes.num_layers), layer);
  return spec;
}

// Keys that other members of these families use for another computation: only the value named is the plain
// one.
Status refuse_other_computations(const ConfigReader& config, const DenseDefaults& defaults) {
  if (!defaults.experts) {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      HEADRACE_RETURN_IF_ERROR(config.only(key, 0));
    }
  }
  const std::pair<const char*, nlohmann::json> kPlain[] = {
      {"clip_qkv", nullptr},          {"attention_multiplier", 1.0}, {"residual_multiplier", 1.0},
      {"embedding_multiplier", 1.0},  {"logits_scaling", 1.0},       {"logit_scale", 1.0},
      {"add_cross_attention", false}, {"is_encoder_decoder", false}, {"use_bidirectional_attention", false},
      {"no_rope_layers", nullptr},    {"altup_num_inputs", nullptr},
  };
  for (const auto& [key, plain] : kPlain) {
    const auto& own = defaults.own_keys;
    if (std::find(own.begin(), own.end(), std::string_view(key)) != own.end()) continue;
    HEADRACE_RETURN_IF_ERROR(config.only(key, plain));
  }
  return {};
}

Result<int64_t> sized(const ConfigReader& config, const char* key, int64_t high, int64_t fallback) {
  if (fallback == 0) return config.integer(key, 1, high);
  return config.integer_or(key, 1, high, fallback);
}

Result<std::vector<int64_t>> read_lengths(const ConfigReader& config, const char* key, int64_t num_layers) {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<int64_t> lengths, config.integers(key));
  if (static_cast<int64_t>(lengths.size()) != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", lengths.size(), num_layers);
  }
  for (const int64_t length : lengths) {
    if (length < 1 || length > kMaxSize) return malformed(config.place_of(key), "{} is out of range", length);
  }
  return lengths;
}

}  // namespace

GqaAttention& gqa(LayerSpec& layer) { return std::get<GqaAttention>(layer.attention); }
DenseFeedForward& dense(LayerSpec& layer) { return std::get<DenseFeedForward>(layer.feed_forward); }

Result<ModelSpec> read_dense_config(const ConfigReader& config, const DenseDefaults& defaults) {
  HEADRACE_RETURN_IF_ERROR(refuse_other_computations(config, defaults));
  const DenseKeys& keys = defaults.keys;
  DenseSizes sizes;
  HEADRACE_ASSIGN_OR_RETURN(sizes.vocab_size, sized(config, "vocab_size", kMaxSize, defaults.vocab_size));
  HEADRACE_ASSIGN_OR_RETURN(sizes.hidden_size, sized(config, keys.hidden_size, kMaxSize, defaults.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_layers, sized(config, keys.num_layers, kMaxLayers, defaults.num_layers));
  std::vector<int64_t> lengths;  // of each layer's feed-forward
  const nlohmann::json* const length = config.find(keys.intermediate_size);
  if (defaults.by_layer && length != nullptr && length->is_array()) {
    HEADRACE_ASSIGN_OR_RETURN(lengths, read_lengths(config, keys.intermediate_size, sizes.num_layers));
    sizes.intermediate_size = lengths[0];
  } else {
    HEADRACE_ASSIGN_OR_RETURN(sizes.intermediate_size,
                              sized(config, keys.intermediate_size, kMaxSize, defaults.intermediate_size));
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_heads, sized(config, keys.num_heads, kMaxSize, defaults.num_heads));
  const int64_t kv_default = defaults.num_kv_heads == -1 ? sizes.num_heads : defaults.num_kv_heads;
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_kv_heads, sized(config, "num_key_value_heads", kMaxSize, kv_default));
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return malformed(config.place_of("num_key_value_heads"), "{} attention heads are no multiple of {}",
                     sizes.num_heads, sizes.num_kv_heads);
  }
  if (!config.has("head_dim") && defaults.head_dim == -1) {
    if (sizes.hidden_size % sizes.num_heads != 0) {
      return malformed(config.place_of(keys.num_heads), "hidden_size {} is no multiple of {} heads", sizes.hidden_size,
                       sizes.num_heads);
    }
    sizes.head_dim = sizes.hidden_size / sizes.num_heads;
  } else {
    HEADRACE_ASSIGN_OR_RETURN(sizes.head_dim,
                              sized(config, "head_dim", kMaxSize, std::max<int64_t>(defaults.head_dim, 0)));
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.max_position_embeddings, sized(config, keys.max_position_embeddings, kMaxPositions,
                                                                 defaults.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(sizes.norm_eps, config.positive_or(keys.norm_eps, defaults.norm_eps));
  ModelSpec spec = make_dense_spec(sizes);
  for (size_t i = 0; i < lengths.size(); ++i) {
    dense(spec.layers[i]).intermediate_size = static_cast<int32_t>(lengths[i]);
  }
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_word_embeddings", defaults.tied));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> bos, config.integers("bos_token_id"));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> eos, config.integers("eos_token_id"));
  const auto check_id = [&](const char* key, int64_t id) -> Status {
    if (id >= 0 && id < sizes.vocab_size) return {};
    return malformed(config.place_of(key), "{} is outside the vocabulary of {}", id, sizes.vocab_size);
  };
  if (!bos.empty()) {
    HEADRACE_RETURN_IF_ERROR(check_id("bos_token_id", bos[0]));
    spec.bos_token_id = static_cast<int32_t>(bos[0]);
  }
  for (const int64_t id : eos) {
    HEADRACE_RETURN_IF_ERROR(check_id("eos_token_id", id));
    spec.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(spec.eos_token_ids.begin(), spec.eos_token_ids.end());
  return spec;
}

Result<std::vector<bool>> read_layer_types(const ConfigReader& config, size_t num_layers) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.texts("layer_types"));
  std::vector<bool> windowed;
  if (types.empty()) return windowed;
  if (types.size() != num_layers) {
    return malformed(config.place_of("layer_types"), "{} entries for {} layers", types.size(), num_layers);
  }
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return unsupported(config.place_of("layer_types"), "unknown layer type '{}'", type);
    }
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

Result<RopeSpec> read_rotation(const ConfigReader& config, ModelSpec& spec, double default_theta,
                               std::optional<double> partial) {
  HEADRACE_ASSIGN_OR_RETURN(const RopeConfig parameters,
                            read_rope(config, default_theta, spec.max_position_embeddings, partial));
  const double dims = gqa(spec.layers[0]).head_dim * parameters.partial;
  auto rope = make_rope(parameters.theta, static_cast<int32_t>(dims), parameters.scaling);
  if (!rope.ok()) return rope.status().within(config.place_of("rope_parameters"));
  return rope;
}

Result<RopePair> read_rope_pair(const ConfigReader& config, ModelSpec& spec, double full_theta, double sliding_theta) {
  const int32_t head_dim = gqa(spec.layers[0]).head_dim;
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  RopeConfig full, sliding;
  if (nested.has("full_attention") || nested.has("sliding_attention")) {
    HEADRACE_RETURN_IF_ERROR(
        nested.check_known(std::to_array<std::string_view>({"full_attention", "sliding_attention"})));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader of_full, nested.object("full_attention"));
    HEADRACE_ASSIGN_OR_RETURN(const ConfigReader of_sliding, nested.object("sliding_attention"));
    HEADRACE_ASSIGN_OR_RETURN(full, read_rope_parameters(of_full, full_theta, spec.max_position_embeddings));
    HEADRACE_ASSIGN_OR_RETURN(sliding, read_rope_parameters(of_sliding, sliding_theta, spec.max_position_embeddings));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(full, read_rope(config, full_theta, spec.max_position_embeddings));
    sliding.theta = full.theta;
  }
  auto full_rope = make_rope(full.theta, head_dim, full.scaling);
  if (!full_rope.ok()) return full_rope.status().within(config.place_of("rope_parameters"));
  auto sliding_rope = make_rope(sliding.theta, head_dim, sliding.scaling);
  if (!sliding_rope.ok()) return sliding_rope.status().within(config.place_of("rope_parameters"));
  return RopePair{full_rope.take(), sliding_rope.take()};
}

namespace {

void set_windows(ModelSpec& spec, const std::vector<bool>& windowed, int64_t window) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gqa(spec.layers[i]).window = windowed[i] ? static_cast<int32_t>(window) : 0;
  }
}

// All but each `pattern`-th layer.
std::vector<bool> windowed_by_pattern(size_t num_layers, int64_t pattern) {
  std::vector<bool> windowed(num_layers);
  for (size_t i = 0; i < num_layers && pattern > 0; ++i) windowed[i] = (static_cast<int64_t>(i) + 1) % pattern != 0;
  return windowed;
}

}  // namespace

Status read_windows(const ConfigReader& config, ModelSpec& spec, int64_t default_window, int64_t default_pattern) {
  if (config.contains_null("sliding_window")) default_window = 0;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 1, 1 << 28, default_window));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(config, spec.layers.size()));
  if (windowed.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t pattern,
                              config.integer_or("sliding_window_pattern", 1, INT32_MAX, default_pattern));
    windowed = windowed_by_pattern(spec.layers.size(), pattern);
  }
  set_windows(spec, windowed, window);
  return {};
}

Status read_gguf_windows(const GgufReader& gguf, ModelSpec& spec, int64_t default_pattern) {
  if (!gguf.has("attention.sliding_window")) return {};
  HEADRACE_ASSIGN_OR_RETURN(const int64_t window, gguf.integer("attention.sliding_window", 1, 1 << 28));
  std::vector<bool> windowed = windowed_by_pattern(spec.layers.size(), default_pattern);
  if (gguf.has("attention.sliding_window_pattern")) {
    const std::string key = gguf.key("attention.sliding_window_pattern");
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<uint8_t> pattern, gguf.file().get_bool_array(key));
    if (pattern.size() != spec.layers.size()) {
      return malformed(key, "{} entries for {} layers", pattern.size(), spec.layers.size());
    }
    windowed.assign(pattern.begin(), pattern.end());
  }
  set_windows(spec, windowed, window);
  return {};
}

Status read_layer_choices(const ConfigReader& config, ModelSpec& spec, const LayerChoices& choices) {
  HEADRACE_ASSIGN_OR_RETURN(const Activation activation,
                            read_activation(config, choices.activation_key, choices.activation));
  bool attention_bias = choices.attention_bias, feed_forward_bias = choices.feed_forward_bias;
  if (choices.attention_bias_key != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(attention_bias, config.boolean_or(choices.attention_bias_key, attention_bias));
  }
  if (choices.feed_forward_bias_key != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(feed_forward_bias, config.boolean_or(choices.feed_forward_bias_key, feed_forward_bias));
  }
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).qkv_bias = gqa(layer).output_bias = attention_bias;
    dense(layer).activation = activation;
    dense(layer).bias = feed_forward_bias;
  }
  return {};
}

Status refuse_gguf_attention_keys(const GgufReader& gguf, std::span<const std::string_view> read) {
  for (const std::string_view key : {"attention.sliding_window", "attention.sliding_window_pattern",
                                     "rope.freq_base_swa", "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (std::find(read.begin(), read.end(), key) != read.end() || !gguf.has(key)) continue;
    return unsupported(gguf.key(key), "not a parameter of {} models", gguf.architecture());
  }
  return {};
}

namespace {

// Parameters of dense decoders under an architecture's prefix. The rest is refused by name.
constexpr std::string_view kKnownKeys[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "expert_used_count",
    "pooling_type",
    "tensor_data_layout",
    "use_parallel_residual",
};

Status refuse_other_computations(const GgufReader& gguf, const DenseGguf& family) {
  std::vector<std::string_view> known(std::begin(kKnownKeys), std::end(kKnownKeys));
  known.insert(known.end(), family.more_keys.begin(), family.more_keys.end());
  HEADRACE_RETURN_IF_ERROR(gguf.check_known(known));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, gguf.integer_or("expert_count", 0, INT32_MAX, 0));
  if (experts > 0 && !family.experts)
    return unsupported(gguf.key("expert_count"), "a mixture of {} experts is not supported here", experts);
  HEADRACE_ASSIGN_OR_RETURN(const bool causal, gguf.file().get_bool_or(gguf.key("attention.causal"), true));
  if (causal == family.both_ways) {
    return unsupported(gguf.key("attention.causal"), "{} is not supported for {}", causal, gguf.architecture());
  }
  HEADRACE_ASSIGN_OR_RETURN(const bool parallel, gguf.file().get_bool_or(gguf.key("use_parallel_residual"), false));
  if (parallel) return unsupported(gguf.key("use_parallel_residual"), "parallel residuals are not supported here");
  return {};
}

// rope_freqs.weight divides the frequencies, dim by dim.
Status apply_rope_factors(const GgufFile& file, RopeSpec& rope) {
  const TensorEntry* entry = file.find("rope_freqs.weight");
  if (entry == nullptr) return {};
  if (entry->dtype != DType::kF32 || entry->shape != std::vector<uint64_t>{rope.inv_freq.size()}) {
    return malformed("rope_freqs.weight", "expected F32 [{}], got {} [{}]", rope.inv_freq.size(),
                     dtype_name(entry->dtype), fmt::join(entry->shape, ", "));
  }
  std::vector<float> factors(rope.inv_freq.size());
  HEADRACE_RETURN_IF_ERROR(file.read(*entry, 0, std::as_writable_bytes(std::span(factors))));
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0) || !std::isfinite(factors[i]))
      return malformed("rope_freqs.weight", "entry {} is not positive", i);
    rope.inv_freq[i] /= factors[i];
  }
  rope.type = "factors";
  return {};
}

}  // namespace

Result<std::vector<int64_t>> read_per_layer(const GgufReader& gguf, std::string_view suffix, size_t num_layers) {
  const std::string key = gguf.key(suffix);
  const GgufValue* value = gguf.file().find_metadata(key);
  if (value == nullptr) return malformed(key, "missing");
  if (value->is_array() && value->count() != num_layers) {
    return malformed(key, "{} entries for {} layers", value->count(), num_layers);
  }
  std::vector<int64_t> out;
  for (size_t i = 0; i < num_layers; ++i) {
    const auto number = value->as_i64(value->is_array() ? i : 0);
    if (!number || *number < 0 || *number > kMaxSize) return malformed(key, "entry {} is no size", i);
    out.push_back(*number);
  }
  return out;
}

Result<ModelSpec> read_dense_gguf(const GgufReader& gguf, const DenseGguf& family) {
  HEADRACE_RETURN_IF_ERROR(refuse_other_computations(gguf, family));
  const GgufFile& file = gguf.file();
  DenseSizes sizes;
  const TensorEntry* table = file.find("token_embd.weight");
  if (table == nullptr) return not_found("token_embd.weight", "the file has no such tensor");
  if (table->shape.size() != 2 || table->shape[0] < 1 || table->shape[0] > static_cast<uint64_t>(kMaxSize)) {
    return malformed("token_embd.weight", "shape [{}] is no embedding table", fmt::join(table->shape, ", "));
  }
  sizes.vocab_size = static_cast<int64_t>(table->shape[0]);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t stated, gguf.integer_or("vocab_size", 1, kMaxSize, sizes.vocab_size));
  if (stated != sizes.vocab_size) {
    return malformed(gguf.key("vocab_size"), "{}, but token_embd.weight has {} rows", stated, sizes.vocab_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.hidden_size, gguf.integer("embedding_length", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_layers, gguf.integer("block_count", 1, kMaxLayers));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_heads, gguf.integer("attention.head_count", 1, kMaxSize));
  std::vector<int64_t> lengths, kv_heads;  // of each layer
  if (family.by_layer) {
    const auto num_layers = static_cast<size_t>(sizes.num_layers);
    HEADRACE_ASSIGN_OR_RETURN(lengths, read_per_layer(gguf, "feed_forward_length", num_layers));
    HEADRACE_ASSIGN_OR_RETURN(kv_heads, read_per_layer(gguf, "attention.head_count_kv", num_layers));
    sizes.intermediate_size = lengths[0];
    sizes.num_kv_heads = std::max<int64_t>(kv_heads[0], 1);
  } else {
    HEADRACE_ASSIGN_OR_RETURN(sizes.intermediate_size, gguf.integer("feed_forward_length", 1, kMaxSize));
    HEADRACE_ASSIGN_OR_RETURN(sizes.num_kv_heads,
                              gguf.integer_or("attention.head_count_kv", 1, kMaxSize, sizes.num_heads));
  }
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return malformed(gguf.key("attention.head_count_kv"), "{} heads are no multiple of {}", sizes.num_heads,
                     sizes.num_kv_heads);
  }
  if (gguf.has("attention.key_length")) {
    HEADRACE_ASSIGN_OR_RETURN(sizes.head_dim, gguf.integer("attention.key_length", 1, kMaxSize));
  } else if (sizes.hidden_size % sizes.num_heads == 0) {
    sizes.head_dim = sizes.hidden_size / sizes.num_heads;
  } else {
    return malformed(gguf.key("attention.head_count"), "embedding_length {} is no multiple of {} heads",
                     sizes.hidden_size, sizes.num_heads);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value_dim,
                            gguf.integer_or("attention.value_length", 1, kMaxSize, sizes.head_dim));
  if (value_dim != sizes.head_dim && !family.any_value_dim) {
    return unsupported(gguf.key("attention.value_length"), "{} differs from the keys' {}", value_dim, sizes.head_dim);
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.max_position_embeddings, gguf.integer("context_length", 1, kMaxPositions));
  const bool layer_norm = gguf.has("attention.layer_norm_epsilon");
  const char* const norm_key = layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  if (!gguf.has(norm_key)) return malformed(gguf.key(norm_key), "missing");
  HEADRACE_ASSIGN_OR_RETURN(sizes.norm_eps, gguf.positive_or(norm_key, 0));
  ModelSpec spec = make_dense_spec(sizes);
  for (size_t i = 0; i < lengths.size(); ++i) {
    dense(spec.layers[i]).intermediate_size = static_cast<int32_t>(lengths[i]);
    gqa(spec.layers[i]).num_kv_heads = static_cast<int32_t>(kv_heads[i]);
  }
  spec.norm = layer_norm ? NormKind::kLayer : NormKind::kRms;
  spec.norm_bias = file.find("output_norm.bias") != nullptr;
  spec.head.bias = file.find("output.bias") != nullptr;

  HEADRACE_ASSIGN_OR_RETURN(const int64_t rotary_dim,
                            gguf.integer_or("rope.dimension_count", 1, sizes.head_dim, sizes.head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base", 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const RopeScaling scaling, gguf.rope_scaling(sizes.max_position_embeddings));
  auto rope = make_rope(theta, static_cast<int32_t>(rotary_dim), scaling);
  if (!rope.ok()) return rope.status().within(gguf.key("rope"));
  HEADRACE_RETURN_IF_ERROR(apply_rope_factors(file, *rope));

  // Where a file has a bias it has it in every layer; a missing one is then found by name.
  const bool qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  const bool output_bias = file.find("blk.0.attn_output.bias") != nullptr;
  const bool feed_forward_bias = file.find("blk.0.ffn_up.bias") != nullptr;
  const bool gated = file.find("blk.0.ffn_up.weight") == nullptr || file.find("blk.0.ffn_gate.weight") != nullptr;
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = *rope;
    gqa(layer).both_ways = family.both_ways;
    gqa(layer).qkv_bias = qkv_bias;
    gqa(layer).output_bias = output_bias;
    dense(layer).bias = feed_forward_bias;
    dense(layer).gated = gated;
  }
  spec.head.tied = file.find("output.weight") == nullptr;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t bos, file.get_i64_or("tokenizer.ggml.bos_token_id", -1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t eos, file.get_i64_or("tokenizer.ggml.eos_token_id", -1));
  for (const auto& [name, id] : {std::pair("bos", bos), std::pair("eos", eos)}) {
    if (id < -1 || id >= sizes.vocab_size) {
      return malformed(fmt::format("tokenizer.ggml.{}_token_id", name), "{} is outside the vocabulary of {}", id,
                       sizes.vocab_size);
    }
  }
  spec.bos_token_id = static_cast<int32_t>(bos);
  if (eos >= 0) spec.eos_token_ids = {static_cast<int32_t>(eos)};
  return spec;
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
};
constexpr NamePair kHfPostNormLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_feed_forward_norm", "post_feedforward_layernorm"},
};

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"q_norm", "attn_q_norm"},
    {"k_norm", "attn_k_norm"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"post_attention_norm", "post_attention_norm"},
    {"post_feed_forward_norm", "post_ffw_norm"},
};
// Read into the frequencies.
constexpr std::string_view kGgufIgnoredSuffixes[] = {"rope_freqs.weight"};
}  // namespace

WeightNaming post_norm_hf_names(const TensorFile&) {
  return {"model.layers.", kHfPostNormLayer, kHfTopNames, {}, kHfSurplus};
}

WeightNaming llama_hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTopNames, {}, kHfSurplus}; }

WeightNaming dense_gguf_names() { return {"blk.", kGgufLayer, kGgufTopNames, {}, kGgufIgnoredSuffixes}; }

}  // namespace headrace
