#include "model/families/recurrent_decoder.h"

#include <algorithm>
#include <cmath>

#include "base/format_full.h"
#include "formats/json.h"
#include "model/families/moe_decoder.h"
#include "model/families/tensor_names.h"

namespace headrace {

namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

constexpr std::string_view kBaseKeys[] = {
    "vocab_size",        "context_length", "embedding_length", "block_count", "attention.layer_norm_rms_epsilon",
    "tensor_data_layout"};

Result<int64_t> sized(const ConfigReader& config, const char* key, int64_t high, int64_t fallback) {
  if (fallback == 0) return config.integer(key, 1, high);
  return config.integer_or(key, 1, high, fallback);
}

Status read_token_ids(const ConfigReader& config, ModelSpec& spec) {
  const auto read = [&](const char* key) -> Result<std::vector<int32_t>> {
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, config.integers(key));
    std::vector<int32_t> out;
    for (const int64_t id : ids) {
      if (id < 0 || id >= spec.vocab_size) {
        return malformed(config.place_of(key), "{} is outside the vocabulary of {}", id, spec.vocab_size);
      }
      out.push_back(static_cast<int32_t>(id));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> bos, read("bos_token_id"));
  if (!bos.empty()) spec.bos_token_id = bos[0];
  HEADRACE_ASSIGN_OR_RETURN(spec.eos_token_ids, read("eos_token_id"));
  return {};
}

}  // namespace

Result<ModelSpec> read_base_config(const ConfigReader& config, const BaseDefaults& defaults) {
  ModelSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t vocab_size, sized(config, "vocab_size", kMaxSize, defaults.vocab_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden_size, sized(config, "hidden_size", kMaxSize, defaults.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_layers,
                            sized(config, "num_hidden_layers", kMaxLayers, defaults.num_layers));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t positions,
                            sized(config, "max_position_embeddings", kMaxPositions, defaults.max_position_embeddings));
  HEADRACE_ASSIGN_OR_RETURN(const double eps, config.positive_or(defaults.eps_key, defaults.norm_eps));
  spec.vocab_size = static_cast<int32_t>(vocab_size);
  spec.hidden_size = static_cast<int32_t>(hidden_size);
  spec.max_position_embeddings = static_cast<int32_t>(positions);
  spec.norm_eps = static_cast<float>(eps);
  spec.layers.resize(static_cast<size_t>(num_layers));
  for (LayerSpec& layer : spec.layers) {
    layer.attention = NoAttention();
    layer.feed_forward = NoFeedForward();
    layer.feed_forward_norm = false;
  }
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_word_embeddings", defaults.tied));
  HEADRACE_RETURN_IF_ERROR(read_token_ids(config, spec));
  return spec;
}

Result<ModelSpec> read_base_gguf(const GgufReader& gguf, std::span<const std::string_view> known_keys) {
  std::vector<std::string_view> known(std::begin(kBaseKeys), std::end(kBaseKeys));
  known.insert(known.end(), known_keys.begin(), known_keys.end());
  HEADRACE_RETURN_IF_ERROR(gguf.check_known(known));
  const GgufFile& file = gguf.file();
  const TensorEntry* table = file.find("token_embd.weight");
  if (table == nullptr) return not_found("token_embd.weight", "the file has no such tensor");
  if (table->shape.size() != 2 || table->shape[0] < 1 || table->shape[0] > static_cast<uint64_t>(kMaxSize)) {
    return malformed("token_embd.weight", "shape [{}] is no embedding table", fmt::join(table->shape, ", "));
  }
  const auto vocab_size = static_cast<int64_t>(table->shape[0]);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t stated, gguf.integer_or("vocab_size", 1, kMaxSize, vocab_size));
  if (stated != vocab_size) {
    return malformed(gguf.key("vocab_size"), "{}, but token_embd.weight has {} rows", stated, vocab_size);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t hidden_size, gguf.integer("embedding_length", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_layers, gguf.integer("block_count", 1, kMaxLayers));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t positions, gguf.integer("context_length", 1, kMaxPositions));
  const char* eps_key = "attention.layer_norm_rms_epsilon";
  if (!gguf.has(eps_key)) eps_key = "attention.layer_norm_epsilon";
  if (!gguf.has(eps_key)) return malformed(gguf.key("attention.layer_norm_rms_epsilon"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const double eps, gguf.positive_or(eps_key, 0));
  ModelSpec spec;
  spec.vocab_size = static_cast<int32_t>(vocab_size);
  spec.hidden_size = static_cast<int32_t>(hidden_size);
  spec.max_position_embeddings = static_cast<int32_t>(positions);
  spec.norm_eps = static_cast<float>(eps);
  spec.layers.resize(static_cast<size_t>(num_layers));
  for (LayerSpec& layer : spec.layers) {
    layer.attention = NoAttention();
    layer.feed_forward = NoFeedForward();
    layer.feed_forward_norm = false;
  }
  spec.head.tied = file.find("output.weight") == nullptr;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t bos, file.get_i64_or("tokenizer.ggml.bos_token_id", -1));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t eos, file.get_i64_or("tokenizer.ggml.eos_token_id", -1));
  for (const auto& [name, id] : {std::pair("bos", bos), std::pair("eos", eos)}) {
    if (id < -1 || id >= vocab_size) {
      return malformed(fmt::format("tokenizer.ggml.{}_token_id", name), "{} is outside the vocabulary of {}", id,
                       vocab_size);
    }
  }
  spec.bos_token_id = static_cast<int32_t>(bos);
  if (eos >= 0) spec.eos_token_ids = {static_cast<int32_t>(eos)};
  return spec;
}

namespace {

Result<std::vector<std::string>> read_types(const ConfigReader& config, size_t num_layers, const char* key) {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<std::string> types, config.texts(key));
  if (types.size() != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", types.size(), num_layers);
  }
  return types;
}

}  // namespace

Result<std::vector<std::string>> read_mixed_layer_types(const ConfigReader& config, size_t num_layers) {
  return read_types(config, num_layers, "layer_types");
}

Result<std::vector<bool>> read_attending(const ConfigReader& config, size_t num_layers, const char* key) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, read_types(config, num_layers, key));
  std::vector<bool> attends;
  for (const std::string& type : types) {
    attends.push_back(type == "full_attention" || type == "attention");  // the second of older files
    if (attends.back() || type == "linear_attention" || type == "mamba") continue;
    return unsupported(config.place_of(key), "unknown layer type '{}'", type);
  }
  return attends;
}

Result<std::vector<int64_t>> read_gguf_kv_heads(const GgufReader& gguf, const ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(std::vector<int64_t> out,
                            read_per_layer(gguf, "attention.head_count_kv", spec.layers.size()));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, gguf.integer("attention.head_count", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t head_dim,
                            gguf.integer_or("attention.key_length", 1, kMaxSize, spec.hidden_size / heads));
  for (size_t i = 0; i < out.size(); ++i) {
    const TensorEntry* keys = gguf.file().find(fmt::format("blk.{}.attn_k.weight", i));
    if (keys == nullptr) {
      out[i] = 0;
    } else if (out[i] == 0 && head_dim > 0 && keys->shape.size() == 2) {
      out[i] = static_cast<int64_t>(keys->shape[0]) / head_dim;
    }
  }
  return out;
}

int32_t gguf_feed_forward_size(const GgufReader& gguf, size_t layer) {
  const TensorEntry* up = gguf.file().find(fmt::format("blk.{}.ffn_up.weight", layer));
  if (up == nullptr || up->shape.size() != 2 || up->shape[0] > static_cast<uint64_t>(kMaxSize)) return 0;
  return static_cast<int32_t>(up->shape[0]);
}

Result<GqaAttention> read_gguf_attention(const GgufReader& gguf, const ModelSpec& spec, int64_t num_kv_heads) {
  GqaAttention attention;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, gguf.integer("attention.head_count", 1, kMaxSize));
  if (num_kv_heads < 1 || heads % num_kv_heads != 0) {
    return malformed(gguf.key("attention.head_count_kv"), "{} heads are no multiple of {}", heads, num_kv_heads);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t head_dim,
                            gguf.integer_or("attention.key_length", 1, kMaxSize, spec.hidden_size / heads));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value_dim, gguf.integer_or("attention.value_length", 1, kMaxSize, head_dim));
  if (value_dim != head_dim) {
    return unsupported(gguf.key("attention.value_length"), "{} differs from the keys' {}", value_dim, head_dim);
  }
  attention.num_heads = static_cast<int32_t>(heads);
  attention.num_kv_heads = static_cast<int32_t>(num_kv_heads);
  attention.head_dim = static_cast<int32_t>(head_dim);
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base", 10000.0));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rotary_dim, gguf.integer_or("rope.dimension_count", 1, head_dim, head_dim));
  HEADRACE_ASSIGN_OR_RETURN(const RopeScaling scaling, gguf.rope_scaling(spec.max_position_embeddings));
  auto rope = make_rope(theta, static_cast<int32_t>(rotary_dim), scaling);
  if (!rope.ok()) return rope.status().within(gguf.key("rope"));
  attention.rope = rope.take();
  return attention;
}

Status read_mamba2(const ConfigReader& config, const Mamba2Keys& keys, Mamba2& mamba) {
  const auto size = [&](const char* key, int64_t low, int64_t high, int32_t& out) -> Status {
    if (key == nullptr) return {};
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, config.integer_or(key, low, high, out));
    out = static_cast<int32_t>(value);
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(size(keys.num_heads, 1, 1 << 14, mamba.num_heads));
  HEADRACE_RETURN_IF_ERROR(size(keys.head_dim, 1, 1 << 12, mamba.head_dim));
  HEADRACE_RETURN_IF_ERROR(size(keys.num_groups, 1, 1 << 14, mamba.num_groups));
  if (keys.num_groups != nullptr && mamba.num_groups > 0 && mamba.num_heads % mamba.num_groups != 0) {
    return malformed(config.place_of(keys.num_groups), "{} heads are no multiple of {}", mamba.num_heads,
                     mamba.num_groups);
  }
  HEADRACE_RETURN_IF_ERROR(size(keys.state_size, 1, 1 << 12, mamba.state_size));
  HEADRACE_RETURN_IF_ERROR(size(keys.kernel, 2, kMostConvKernel, mamba.kernel));
  mamba.norm_groups = mamba.num_groups;
  HEADRACE_ASSIGN_OR_RETURN(mamba.conv_bias, config.boolean_or(keys.conv_bias, mamba.conv_bias));
  HEADRACE_ASSIGN_OR_RETURN(mamba.bias, config.boolean_or(keys.bias, mamba.bias));
  return {};
}

Result<Mamba2> read_gguf_mamba2(const GgufReader& gguf) {
  Mamba2 mamba;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t kernel, gguf.integer("ssm.conv_kernel", 2, kMostConvKernel));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t inner, gguf.integer("ssm.inner_size", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t states, gguf.integer("ssm.state_size", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t heads, gguf.integer("ssm.time_step_rank", 1, kMaxSize));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t groups, gguf.integer_or("ssm.group_count", 1, kMaxSize, 1));
  if (inner % heads != 0) {
    return malformed(gguf.key("ssm.inner_size"), "{} is no multiple of {} heads", inner, heads);
  }
  mamba.num_heads = static_cast<int32_t>(heads);
  mamba.head_dim = static_cast<int32_t>(inner / heads);
  mamba.state_size = static_cast<int32_t>(states);
  mamba.num_groups = mamba.norm_groups = static_cast<int32_t>(groups);
  mamba.kernel = static_cast<int32_t>(kernel);
  mamba.conv_bias = true;
  mamba.log_rates = false;
  mamba.step_high = INFINITY;
  return mamba;
}

Result<GatedDelta> read_delta(const ConfigReader& config, const GatedDelta& defaults) {
  GatedDelta delta = defaults;
  const auto read = [&](const char* key, int64_t low, int64_t high, int32_t& size) -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, config.integer_or(key, low, high, size));
    size = static_cast<int32_t>(value);
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(read("linear_conv_kernel_dim", 2, kMostConvKernel, delta.kernel));
  HEADRACE_RETURN_IF_ERROR(read("linear_num_key_heads", 1, 1 << 14, delta.num_key_heads));
  HEADRACE_RETURN_IF_ERROR(read("linear_num_value_heads", 1, 1 << 14, delta.num_heads));
  HEADRACE_RETURN_IF_ERROR(read("linear_key_head_dim", 1, 1 << 12, delta.key_dim));
  HEADRACE_RETURN_IF_ERROR(read("linear_value_head_dim", 1, 1 << 12, delta.value_dim));
  if (delta.num_heads % delta.num_key_heads != 0) {
    return malformed(config.place_of("linear_num_key_heads"), "linear_num_value_heads {} is no multiple of {}",
                     delta.num_heads, delta.num_key_heads);
  }
  return delta;
}

Status read_step_limits(const ConfigReader& config, Mamba2& mamba) {
  mamba.step_low = 0.0f;
  mamba.step_high = INFINITY;
  const nlohmann::json* limits = config.find("time_step_limit");
  if (limits == nullptr) return {};
  const std::string place = config.place_of("time_step_limit");
  if (!limits->is_array() || limits->size() != 2) return malformed(place, "not a pair of numbers");
  const auto number = [](const nlohmann::json& value) -> std::optional<double> {
    // How transformers writes what JSON has no number for.
    const auto special = value.is_object() ? value.find("__float__") : value.end();
    if (value.is_object() && special != value.end() && *special == "Infinity") return INFINITY;
    return json_number(value);
  };
  const auto low = number((*limits)[0]), high = number((*limits)[1]);
  if (!low || !high || !(*low >= 0) || !(*high > *low)) return malformed(place, "not a pair of rising numbers");
  mamba.step_low = static_cast<float>(*low);
  mamba.step_high = static_cast<float>(*high);
  return {};
}

namespace {
constexpr NamePair kHybridGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"mixer_z", "ssm_in"},
    {"mixer_xbc", "ssm_in"},
    {"mixer_step", "ssm_in"},
    {"conv", "ssm_conv1d"},
    {"step", "ssm_dt"},
    {"rate", "ssm_a"},
    {"skip", "ssm_d"},
    {"mixer_norm", "ssm_norm"},
    {"mixer_out", "ssm_out"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"router", "ffn_gate_inp"},
    {"router.correction", "exp_probs_b.bias"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
    {"shared.gate_proj", "ffn_gate_shexp"},
    {"shared.up_proj", "ffn_up_shexp"},
    {"shared.down_proj", "ffn_down_shexp"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"feed_forward_norm", "attn_norm"},  // where a layer is one block, whatever it is
};
}  // namespace

std::vector<std::string_view> hybrid_gguf_keys(std::span<const std::string_view> more_keys) {
  std::vector<std::string_view> keys{"attention.head_count",   "attention.head_count_kv", "attention.key_length",
                                     "attention.value_length", "rope.freq_base",          "rope.dimension_count",
                                     "expert_count",           "expert_used_count",       "rope.scaling.finetuned",
                                     "feed_forward_length"};
  using Names = std::span<const std::string_view>;
  for (const Names more : {Names(kSsmKeys), moe_gguf_keys(), more_keys}) {
    keys.insert(keys.end(), more.begin(), more.end());
  }
  return keys;
}

WeightNaming hybrid_gguf_names() { return {"blk.", kHybridGgufLayer, kGgufTopNames, {}, {}}; }

}  // namespace headrace
