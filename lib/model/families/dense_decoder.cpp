#include "model/families/dense_decoder.h"

#include <algorithm>
#include <cmath>

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
  spec.layers.assign(static_cast<size_t>(sizes.num_layers), LayerSpec{attention, feed_forward, false, false});
  return spec;
}

// Keys that other members of these families use for another computation: only the value named is the plain
// one.
Status refuse_other_computations(const ConfigReader& config) {
  const std::pair<const char*, nlohmann::json> kPlain[] = {
      {"num_experts", 0},
      {"num_local_experts", 0},
      {"n_routed_experts", 0},
      {"clip_qkv", nullptr},
      {"attention_multiplier", 1.0},
      {"residual_multiplier", 1.0},
      {"embedding_multiplier", 1.0},
      {"logits_scaling", 1.0},
      {"logit_scale", 1.0},
      {"add_cross_attention", false},
      {"is_encoder_decoder", false},
      {"use_bidirectional_attention", false},
      {"no_rope_layers", nullptr},
      {"altup_num_inputs", nullptr},
  };
  for (const auto& [key, plain] : kPlain) HEADRACE_RETURN_IF_ERROR(config.only(key, plain));
  return {};
}

Result<int64_t> sized(const ConfigReader& config, const char* key, int64_t high, int64_t fallback) {
  if (fallback == 0) return config.integer(key, 1, high);
  return config.integer_or(key, 1, high, fallback);
}

}  // namespace

GqaAttention& gqa(LayerSpec& layer) { return std::get<GqaAttention>(layer.attention); }
DenseFeedForward& dense(LayerSpec& layer) { return std::get<DenseFeedForward>(layer.feed_forward); }

Result<ModelSpec> read_dense_config(const ConfigReader& config, const DenseDefaults& defaults) {
  HEADRACE_RETURN_IF_ERROR(refuse_other_computations(config));
  DenseSizes sizes;
  HEADRACE_ASSIGN_OR_RETURN(sizes.vocab_size, sized(config, "vocab_size", kMaxSize, defaults.vocab_size));
  HEADRACE_ASSIGN_OR_RETURN(sizes.hidden_size, sized(config, "hidden_size", kMaxSize, defaults.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(sizes.intermediate_size,
                            sized(config, "intermediate_size", kMaxSize, defaults.intermediate_size));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_layers, sized(config, "num_hidden_layers", kMaxLayers, defaults.num_layers));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_heads, sized(config, "num_attention_heads", kMaxSize, defaults.num_heads));
  const int64_t kv_default = defaults.num_kv_heads == -1 ? sizes.num_heads : defaults.num_kv_heads;
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_kv_heads, sized(config, "num_key_value_heads", kMaxSize, kv_default));
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return malformed(config.place_of("num_key_value_heads"), "{} attention heads are no multiple of {}",
                     sizes.num_heads, sizes.num_kv_heads);
  }
  if (!config.has("head_dim") && defaults.head_dim == -1) {
    if (sizes.hidden_size % sizes.num_heads != 0) {
      return malformed(config.place_of("num_attention_heads"), "hidden_size {} is no multiple of {} heads",
                       sizes.hidden_size, sizes.num_heads);
    }
    sizes.head_dim = sizes.hidden_size / sizes.num_heads;
  } else {
    HEADRACE_ASSIGN_OR_RETURN(sizes.head_dim,
                              sized(config, "head_dim", kMaxSize, std::max<int64_t>(defaults.head_dim, 0)));
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.max_position_embeddings,
                            sized(config, "max_position_embeddings", kMaxPositions, defaults.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(sizes.norm_eps, config.number_or("rms_norm_eps", defaults.norm_eps));
  ModelSpec spec = make_dense_spec(sizes);
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

Status refuse_other_computations(const GgufReader& gguf) {
  HEADRACE_RETURN_IF_ERROR(gguf.check_known(kKnownKeys));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t experts, gguf.integer_or("expert_count", 0, INT32_MAX, 0));
  if (experts > 0)
    return unsupported(gguf.key("expert_count"), "a mixture of {} experts is not supported here", experts);
  HEADRACE_ASSIGN_OR_RETURN(const bool causal, gguf.file().get_bool_or(gguf.key("attention.causal"), true));
  if (!causal) return unsupported(gguf.key("attention.causal"), "attention to later positions is not supported");
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

Result<ModelSpec> read_dense_gguf(const GgufReader& gguf) {
  HEADRACE_RETURN_IF_ERROR(refuse_other_computations(gguf));
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
  HEADRACE_ASSIGN_OR_RETURN(sizes.intermediate_size, gguf.integer("feed_forward_length", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_heads, gguf.integer("attention.head_count", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(sizes.num_kv_heads,
                            gguf.integer_or("attention.head_count_kv", 1, kMaxSize, sizes.num_heads));
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
  if (value_dim != sizes.head_dim) {
    return unsupported(gguf.key("attention.value_length"), "{} differs from the keys' {}", value_dim, sizes.head_dim);
  }
  HEADRACE_ASSIGN_OR_RETURN(sizes.max_position_embeddings, gguf.integer("context_length", 1, kMaxPositions));
  if (!gguf.has("attention.layer_norm_rms_epsilon"))
    return malformed(gguf.key("attention.layer_norm_rms_epsilon"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(sizes.norm_eps, gguf.number_or("attention.layer_norm_rms_epsilon", 0));
  ModelSpec spec = make_dense_spec(sizes);

  HEADRACE_ASSIGN_OR_RETURN(const int64_t rotary_dim,
                            gguf.integer_or("rope.dimension_count", 0, sizes.head_dim, sizes.head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.number_or("rope.freq_base", 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const RopeScaling scaling, gguf.rope_scaling(sizes.max_position_embeddings));
  auto rope = make_rope(theta, static_cast<int32_t>(rotary_dim), scaling);
  if (!rope.ok()) return rope.status().within(gguf.key("rope"));
  HEADRACE_RETURN_IF_ERROR(apply_rope_factors(file, *rope));

  // Where a file has a bias it has it in every layer; a missing one is then found by name.
  const bool qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  const bool output_bias = file.find("blk.0.attn_output.bias") != nullptr;
  const bool feed_forward_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).rope = *rope;
    gqa(layer).qkv_bias = qkv_bias;
    gqa(layer).output_bias = output_bias;
    dense(layer).bias = feed_forward_bias;
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
constexpr NamePair kHfTop[] = {{"embed", "model.embed_tokens"}, {"final_norm", "model.norm"}, {"lm_head", "lm_head"}};
// Frequencies that old checkpoints stored beside the parameters they follow from, and a copy of the table
// when tied.
constexpr std::string_view kHfIgnoredSuffixes[] = {"rotary_emb.inv_freq", "lm_head.weight"};

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
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"}, {"final_norm", "output_norm"}, {"lm_head", "output"}};
// Read into the frequencies.
constexpr std::string_view kGgufIgnoredSuffixes[] = {"rope_freqs.weight"};
}  // namespace

WeightNaming llama_hf_names(const TensorFile&) { return {"model.layers.", kHfLayer, kHfTop, {}, kHfIgnoredSuffixes}; }

WeightNaming dense_gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, kGgufIgnoredSuffixes}; }

}  // namespace headrace
