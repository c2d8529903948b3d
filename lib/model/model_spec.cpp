#include "model/model_spec.h"

#include <cmath>

#include "formats/json_writer.h"

namespace headrace {

namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 18;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

Status check_range(const std::string& place, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) return malformed(place, "{} is outside [{}, {}]", value, low, high);
  return {};
}

Status check_finite(const std::string& place, float value) {
  if (!std::isfinite(value)) return malformed(place, "not a finite number");
  return {};
}

Status check_rope(const std::string& place, const RopeSpec& rope, int32_t head_dim) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "rotary_dim", rope.rotary_dim, 0, head_dim));
  if (rope.rotary_dim % 2 != 0) return malformed(place + "rotary_dim", "{} is odd", rope.rotary_dim);
  if (rope.inv_freq.size() != static_cast<size_t>(rope.rotary_dim) / 2) {
    return malformed(place + "inv_freq", "{} frequencies for {} rotating dims", rope.inv_freq.size(), rope.rotary_dim);
  }
  for (const float frequency : rope.inv_freq) HEADRACE_RETURN_IF_ERROR(check_finite(place + "inv_freq", frequency));
  return check_finite(place + "attention_factor", rope.attention_factor);
}

Status check_attention(const std::string& place, const GqaAttention& attention) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", attention.num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_kv_heads", attention.num_kv_heads, 1, attention.num_heads));
  if (attention.num_heads % attention.num_kv_heads != 0) {
    return malformed(place + "num_kv_heads", "{} query heads are no multiple of {} key/value heads",
                     attention.num_heads, attention.num_kv_heads);
  }
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", attention.head_dim, 1, kMaxHeadDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "window", attention.window, 0, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", attention.scale));
  if (!std::isfinite(attention.logit_softcap) || attention.logit_softcap < 0) {
    return malformed(place + "logit_softcap", "not a finite number of at least 0");
  }
  return check_rope(place + "rope.", attention.rope, attention.head_dim);
}

void write_rope(JsonWriter& out, const RopeSpec& rope, bool with_frequencies) {
  out.begin_object();
  out.member("type", rope.type);
  out.member("theta", rope.theta);
  out.member("rotary_dim", rope.rotary_dim);
  out.member("attention_factor", rope.attention_factor);
  out.member("interleaved", rope.interleaved);
  if (with_frequencies) out.list("inv_freq", rope.inv_freq);
  out.end_object();
}

void write_attention(JsonWriter& out, const GqaAttention& attention, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "gqa");
  out.member("num_heads", attention.num_heads);
  out.member("num_kv_heads", attention.num_kv_heads);
  out.member("head_dim", attention.head_dim);
  out.member("scale", attention.scale);
  out.member("window", attention.window);
  out.member("logit_softcap", attention.logit_softcap);
  out.member("qkv_bias", attention.qkv_bias);
  out.member("output_bias", attention.output_bias);
  out.member("qk_norm", attention.qk_norm);
  out.key("rope");
  write_rope(out, attention.rope, with_frequencies);
  out.end_object();
}

void write_feed_forward(JsonWriter& out, const DenseFeedForward& dense) {
  out.begin_object();
  out.member("kind", "dense");
  out.member("intermediate_size", dense.intermediate_size);
  out.member("activation", activation_name(dense.activation));
  out.member("bias", dense.bias);
  out.end_object();
}

}  // namespace

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return "silu";
    case Activation::kGeluTanh: return "gelu_tanh";
    case Activation::kGeluErf: return "gelu_erf";
    case Activation::kRelu: return "relu";
  }
  return "?";
}

Status validate_spec(const ModelSpec& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range("vocab_size", spec.vocab_size, 1, kMaxVocab));
  HEADRACE_RETURN_IF_ERROR(check_range("hidden_size", spec.hidden_size, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range("max_position_embeddings", spec.max_position_embeddings, 1, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_range("num_hidden_layers", static_cast<int64_t>(spec.layers.size()), 1, kMaxLayers));
  HEADRACE_RETURN_IF_ERROR(check_finite("embedding_scale", spec.embedding_scale));
  if (!(spec.norm_eps > 0) || !std::isfinite(spec.norm_eps)) return malformed("norm_eps", "must be a positive number");
  if (!std::isfinite(spec.head.logit_softcap) || spec.head.logit_softcap < 0) {
    return malformed("final_logit_softcapping", "not a finite number of at least 0");
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string place = fmt::format("layers.{}.", i);
    HEADRACE_RETURN_IF_ERROR(
        std::visit([&](const auto& attention) { return check_attention(place + "attention.", attention); },
                   spec.layers[i].attention));
    HEADRACE_RETURN_IF_ERROR(std::visit(
        [&](const auto& dense) {
          return check_range(place + "feed_forward.intermediate_size", dense.intermediate_size, 1, kMaxIntermediate);
        },
        spec.layers[i].feed_forward));
  }
  // The head may be larger than the tokens in use, never smaller: an id beyond it could not be embedded.
  for (const int32_t id : spec.eos_token_ids) {
    HEADRACE_RETURN_IF_ERROR(check_range("eos_token_id", id, 0, spec.vocab_size - 1));
  }
  return check_range("bos_token_id", spec.bos_token_id, -1, spec.vocab_size - 1);
}

std::vector<KvLayout> kv_layouts(const ModelSpec& spec, KvDType dtype, int32_t block_size) {
  std::vector<KvLayout> layouts;
  layouts.reserve(spec.layers.size());
  for (const LayerSpec& layer : spec.layers) {
    const auto& attention = std::get<GqaAttention>(layer.attention);
    layouts.push_back({dtype, attention.num_kv_heads, attention.head_dim, block_size});
  }
  return layouts;
}

uint64_t kv_bytes_per_token(const ModelSpec& spec, KvDType dtype) {
  uint64_t block = 0;
  for (const KvLayout& layout : kv_layouts(spec, dtype)) block += layout.block_bytes();
  return (block + 15) / 16;
}

void write_spec(JsonWriter& out, const ModelSpec& spec, bool with_frequencies) {
  out.member("architecture", spec.architecture);
  out.member("vocab_size", spec.vocab_size);
  out.member("hidden_size", spec.hidden_size);
  out.member("max_position_embeddings", spec.max_position_embeddings);
  out.member("embedding_scale", spec.embedding_scale);
  out.member("norm_eps", spec.norm_eps);
  out.member("norm_weight_offset", spec.norm_weight_offset);
  out.member("tied", spec.head.tied);
  out.member("final_logit_softcap", spec.head.logit_softcap);
  out.key("layers");
  out.begin_array();
  for (const LayerSpec& layer : spec.layers) {
    out.begin_object();
    out.key("attention");
    std::visit([&](const auto& attention) { write_attention(out, attention, with_frequencies); }, layer.attention);
    out.key("feed_forward");
    std::visit([&](const auto& dense) { write_feed_forward(out, dense); }, layer.feed_forward);
    out.member("post_attention_norm", layer.post_attention_norm);
    out.member("post_feed_forward_norm", layer.post_feed_forward_norm);
    out.end_object();
  }
  out.end_array();
}

std::string spec_to_json(const ModelSpec& spec) {
  JsonWriter out;
  out.begin_object();
  write_spec(out, spec, true);
  out.end_object();
  return out.take();
}

}  // namespace headrace
