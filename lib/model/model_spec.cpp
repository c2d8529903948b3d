#include "model/model_spec.h"

#include <algorithm>
#include <cmath>

#include "formats/json_writer.h"
#include "model/mixer.h"
#include "tensor/stream_params.h"

namespace headrace {

namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 18;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxExperts = int64_t{1} << 14;
// Experts, and heads with matrices of their own, of all layers: each has an entry in lists of weights.
constexpr int64_t kMaxParts = int64_t{1} << 17;
constexpr int64_t kMaxPositions = int64_t{1} << 28;
constexpr int64_t kMaxAxes = 8;
constexpr int64_t kMaxStreams = 64;
constexpr int64_t kMaxIterations = 1000;
constexpr int64_t kMaxRun = int64_t{1} << 16;
constexpr int64_t kMaxBuckets = 1 << 16;
constexpr int64_t kMaxDistance = 1 << 16;

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
  if (!rope.axes.empty() && rope.axes.size() != rope.inv_freq.size()) {
    return malformed(place + "axes", "{} axes for {} frequencies", rope.axes.size(), rope.inv_freq.size());
  }
  if (!rope.long_inv_freq.empty()) {
    if (rope.long_inv_freq.size() != rope.inv_freq.size())
      return malformed(place + "long_inv_freq", "not one per pair");
    for (const float frequency : rope.long_inv_freq) {
      HEADRACE_RETURN_IF_ERROR(check_finite(place + "long_inv_freq", frequency));
    }
  }
  if (rope.dynamic_factor != 0) {
    if (!(rope.dynamic_factor > 0) || !std::isfinite(rope.dynamic_factor)) {
      return malformed(place + "dynamic_factor", "{} is not a positive number", rope.dynamic_factor);
    }
    HEADRACE_RETURN_IF_ERROR(check_range(place + "rotary_dim", rope.rotary_dim, 4, head_dim));
  }
  if (!rope.long_inv_freq.empty() || rope.dynamic_factor != 0) {
    HEADRACE_RETURN_IF_ERROR(check_range(place + "short_length", rope.short_length, 1, kMaxPositions));
  }
  return check_finite(place + "attention_factor", rope.attention_factor);
}

Status check_buckets(const std::string& place, const PositionBuckets& buckets, bool both_ways) {
  const int32_t sides = both_ways ? 2 : 1;
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_buckets", buckets.num_buckets, 2 * sides, kMaxBuckets));
  if (buckets.num_buckets % sides != 0) return malformed(place + "num_buckets", "{} is odd", buckets.num_buckets);
  return check_range(place + "max_distance", buckets.max_distance, buckets.num_buckets / sides / 2 + 1, kMaxDistance);
}

Status check_cross(const std::string& place, const LayerSpec& layer) {
  if (!layer.cross) return {};
  if (layer.parallel) return malformed(place + "parallel", "a layer with cross-attention has its blocks in a row");
  HEADRACE_RETURN_IF_ERROR(check_range(place + "cross.num_heads", layer.cross->num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "cross.head_dim", layer.cross->head_dim, 1, kMaxHeadDim));
  return check_finite(place + "cross.scale", layer.cross->scale);
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
  HEADRACE_RETURN_IF_ERROR(check_range(place + "chunk", attention.chunk, 0, kMaxPositions));
  if (attention.both_ways && attention.chunk > 0) return unsupported(place + "chunk", "of attention both ways");
  HEADRACE_RETURN_IF_ERROR(check_range(place + "v_dim", attention.v_dim, 0, attention.head_dim));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "value_scale", attention.value_scale));
  if ((attention.values_from_keys || attention.value_norm) && attention.value_dim() != attention.head_dim) {
    return malformed(place + "v_dim", "values made of keys, or normalised, are as wide as keys");
  }
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", attention.scale));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "position_scale", attention.position_scale));
  if (attention.position_scale != 0) {
    HEADRACE_RETURN_IF_ERROR(
        check_range(place + "position_scale_length", attention.position_scale_length, 1, kMaxPositions));
  }
  if (!std::isfinite(attention.logit_softcap) || attention.logit_softcap < 0) {
    return malformed(place + "logit_softcap", "not a finite number of at least 0");
  }
  if (attention.position_buckets) {
    HEADRACE_RETURN_IF_ERROR(
        check_buckets(place + "position_buckets.", *attention.position_buckets, attention.both_ways));
  }
  return check_rope(place + "rope.", attention.rope, attention.head_dim);
}

template <class Spec>
Status check_attention(const std::string& place, const Spec& spec) {
  return check_mixer(place, spec);
}

Status check_attention(const std::string& place, const LatentAttention& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "q_rank", spec.q_rank, 0, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "rank", spec.rank, 1, kMaxHeadDim / 2));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "nope_dim", spec.nope_dim, 1, kMaxHeadDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "rope_dim", spec.rope_dim, 1, kMaxHeadDim / 2));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "v_dim", spec.v_dim, 1, kMaxHeadDim));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", spec.scale));
  if (!(spec.latent_norm_eps > 0) || !std::isfinite(spec.latent_norm_eps)) {
    return malformed(place + "latent_norm_eps", "must be a positive number");
  }
  if (spec.rope.rotary_dim != spec.rope_dim && spec.rope.rotary_dim != 0) {
    return malformed(place + "rope.rotary_dim", "{}, but {} dims rotate", spec.rope.rotary_dim, spec.rope_dim);
  }
  return check_rope(place + "rope.", spec.rope, spec.rope_dim);
}

Status check_attention(const std::string& place, const SparseLatentAttention& spec) {
  HEADRACE_RETURN_IF_ERROR(check_attention(place, spec.latent));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "index_topk", spec.top_k, 1, kMaxPositions));
  if (!spec.indexer) return {};
  const std::string indexer = place + "indexer.";
  if (spec.latent.q_rank == 0) return malformed(indexer + "q_rank", "queries have no latent");
  HEADRACE_RETURN_IF_ERROR(check_range(indexer + "num_heads", spec.indexer->num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(indexer + "head_dim", spec.indexer->head_dim, 1, kMaxHeadDim));
  if (!(spec.indexer->norm_eps > 0)) return malformed(indexer + "norm_eps", "must be a positive number");
  return check_rope(indexer + "rope.", spec.indexer->rope, spec.indexer->head_dim);
}

Status check_attention(const std::string& place, const CompressedAttention& spec) {
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_heads", spec.num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "head_dim", spec.head_dim, 1, kMaxHeadDim));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "q_rank", spec.q_rank, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "window", spec.window, 1, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "output_groups", spec.output_groups, 1, spec.num_heads));
  if (spec.num_heads % spec.output_groups != 0) {
    return malformed(place + "output_groups", "{} heads are no multiple of {} groups", spec.num_heads,
                     spec.output_groups);
  }
  HEADRACE_RETURN_IF_ERROR(check_range(place + "output_rank", spec.output_rank, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", spec.scale));
  if (!(spec.eps > 0) || !std::isfinite(spec.eps)) return malformed(place + "eps", "must be a positive number");
  HEADRACE_RETURN_IF_ERROR(check_rope(place + "rope.", spec.rope, spec.head_dim));
  if (!spec.rope.axes.empty() || !spec.rope.long_inv_freq.empty() || spec.rope.dynamic_factor != 0) {
    return unsupported(place + "rope", "runs have one position and one set of frequencies");
  }
  if (spec.compressor) {
    HEADRACE_RETURN_IF_ERROR(check_range(place + "compressor.run", spec.compressor->run, 1, kMaxRun));
  }
  if (!spec.indexer) return {};
  const std::string indexer = place + "indexer.";
  if (!spec.compressor) return malformed(indexer + "top_k", "there are no runs to choose from");
  HEADRACE_RETURN_IF_ERROR(check_range(indexer + "num_heads", spec.indexer->num_heads, 1, kMaxHeads));
  HEADRACE_RETURN_IF_ERROR(
      check_range(indexer + "head_dim", spec.indexer->head_dim, std::max(spec.rope.rotary_dim, 1), kMaxHeadDim));
  return check_range(indexer + "top_k", spec.indexer->top_k, 1, kMaxPositions);
}

Status check_attention(const std::string& place, const AttentionBesideMamba& spec) {
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "attention_scale", spec.attention_scale));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "mamba_scale", spec.mamba_scale));
  HEADRACE_RETURN_IF_ERROR(check_attention(place, spec.attention));
  return check_mixer(place + "mamba.", spec.mamba);
}

std::string_view qk_norm_name(QkNormKind kind) {
  switch (kind) {
    case QkNormKind::kHead: return "head";
    case QkNormKind::kHeadAfterRotation: return "head_after_rotation";
    case QkNormKind::kHeadAfterRotationUnweighted: return "head_after_rotation_unweighted";
    case QkNormKind::kWhole: return "whole";
    case QkNormKind::kHeadLayer: return "head_layer_norm";
  }
  return "?";
}

void write_rope(JsonWriter& out, const RopeSpec& rope, bool with_frequencies) {
  out.begin_object();
  out.member("type", rope.type);
  out.member("theta", rope.theta);
  out.member("rotary_dim", rope.rotary_dim);
  out.member("attention_factor", rope.attention_factor);
  out.member("interleaved", rope.interleaved);
  if (with_frequencies) out.list("inv_freq", rope.inv_freq);
  if (!rope.axes.empty()) out.list("axes", rope.axes);
  if (rope.dynamic_factor != 0) out.member("dynamic_factor", rope.dynamic_factor);
  if (rope.short_length != 0) out.member("short_length", rope.short_length);
  if (with_frequencies && !rope.long_inv_freq.empty()) out.list("long_inv_freq", rope.long_inv_freq);
  out.end_object();
}

void write_attention(JsonWriter& out, const GqaAttention& attention, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "gqa");
  out.member("num_heads", attention.num_heads);
  out.member("num_kv_heads", attention.num_kv_heads);
  out.member("head_dim", attention.head_dim);
  out.member("scale", attention.scale);
  if (attention.both_ways) out.member("both_ways", true);
  if (attention.spans != SpanKind::kIgnored) {
    out.member("spans", attention.spans == SpanKind::kSeen ? "seen" : "alone");
  }
  out.member("window", attention.window);
  out.member("chunk", attention.chunk);
  out.member("v_dim", attention.value_dim());
  out.member("value_scale", attention.value_scale);
  out.member("logit_softcap", attention.logit_softcap);
  out.member("qkv_bias", attention.qkv_bias);
  if (!attention.key_bias) out.member("key_bias", false);
  out.member("output_bias", attention.output_bias);
  if (attention.position_buckets) {
    out.key("position_buckets");
    out.begin_object();
    out.member("num_buckets", attention.position_buckets->num_buckets);
    out.member("max_distance", attention.position_buckets->max_distance);
    if (attention.position_buckets->layer >= 0) out.member("layer", attention.position_buckets->layer);
    out.end_object();
  }
  out.member("output_gate", attention.output_gate);
  out.member("qk_norm", attention.qk_norm);
  if (attention.qk_norm) out.member("qk_norm_kind", qk_norm_name(attention.qk_norm_kind));
  if (attention.position_scale != 0) {
    out.member("position_scale", attention.position_scale);
    out.member("position_scale_length", attention.position_scale_length);
    out.member("position_scale_shift", attention.position_scale_shift);
  }
  out.member("sinks", attention.sinks);
  if (attention.values_from_keys) out.member("values_from_keys", true);
  if (attention.value_norm) out.member("value_norm", true);
  if (attention.kv_layer >= 0) out.member("kv_layer", attention.kv_layer);
  out.key("rope");
  write_rope(out, attention.rope, with_frequencies);
  out.end_object();
}

template <class Spec>
void write_attention(JsonWriter& out, const Spec& spec, bool) {
  out.begin_object();
  write_mixer(out, spec);
  out.end_object();
}

void write_latent(JsonWriter& out, const LatentAttention& spec, bool with_frequencies) {
  out.member("num_heads", spec.num_heads);
  out.member("q_rank", spec.q_rank);
  out.member("rank", spec.rank);
  out.member("nope_dim", spec.nope_dim);
  out.member("rope_dim", spec.rope_dim);
  out.member("v_dim", spec.v_dim);
  out.member("scale", spec.scale);
  out.member("latent_norm_eps", spec.latent_norm_eps);
  out.member("latent_bias", spec.latent_bias);
  out.member("output_bias", spec.output_bias);
  out.key("rope");
  write_rope(out, spec.rope, with_frequencies);
}

void write_attention(JsonWriter& out, const LatentAttention& spec, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "latent");
  write_latent(out, spec, with_frequencies);
  out.end_object();
}

void write_attention(JsonWriter& out, const SparseLatentAttention& spec, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "sparse_latent");
  write_latent(out, spec.latent, with_frequencies);
  out.member("top_k", spec.top_k);
  if (spec.indexer) {
    out.key("indexer");
    out.begin_object();
    out.member("num_heads", spec.indexer->num_heads);
    out.member("head_dim", spec.indexer->head_dim);
    out.member("norm_eps", spec.indexer->norm_eps);
    out.key("rope");
    write_rope(out, spec.indexer->rope, with_frequencies);
    out.end_object();
  }
  out.end_object();
}

void write_attention(JsonWriter& out, const CompressedAttention& spec, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "compressed");
  out.member("num_heads", spec.num_heads);
  out.member("head_dim", spec.head_dim);
  out.member("q_rank", spec.q_rank);
  out.member("window", spec.window);
  out.member("output_groups", spec.output_groups);
  out.member("output_rank", spec.output_rank);
  out.member("scale", spec.scale);
  out.member("eps", spec.eps);
  if (spec.compressor) {
    out.member("run", spec.compressor->run);
    out.member("overlap", spec.compressor->overlap);
  }
  if (spec.indexer) {
    out.key("indexer");
    out.begin_object();
    out.member("num_heads", spec.indexer->num_heads);
    out.member("head_dim", spec.indexer->head_dim);
    out.member("top_k", spec.indexer->top_k);
    out.end_object();
  }
  out.key("rope");
  write_rope(out, spec.rope, with_frequencies);
  out.end_object();
}

void write_attention(JsonWriter& out, const AttentionBesideMamba& spec, bool with_frequencies) {
  out.begin_object();
  out.member("kind", "attention_beside_mamba");
  out.member("attention_scale", spec.attention_scale);
  out.member("mamba_scale", spec.mamba_scale);
  out.key("attention");
  write_attention(out, spec.attention, with_frequencies);
  out.key("mamba");
  write_attention(out, spec.mamba, with_frequencies);
  out.end_object();
}

void write_cross(JsonWriter& out, const CrossAttention& cross) {
  out.key("cross_attention");
  out.begin_object();
  out.member("num_heads", cross.num_heads);
  out.member("head_dim", cross.head_dim);
  out.member("scale", cross.scale);
  out.member("qkv_bias", cross.qkv_bias);
  if (!cross.key_bias) out.member("key_bias", false);
  out.member("output_bias", cross.output_bias);
  out.end_object();
}

void write_feed_forward(JsonWriter& out, const DenseFeedForward& dense) {
  out.begin_object();
  out.member("kind", "dense");
  out.member("intermediate_size", dense.intermediate_size);
  out.member("activation", activation_name(dense.activation));
  out.member("bias", dense.bias);
  out.member("gated", dense.gated);
  out.member("gate_scale", dense.gate_scale);
  out.member("inner_scale", dense.inner_scale);
  if (dense.gate_cutoff) out.member("gate_cutoff", *dense.gate_cutoff);
  out.end_object();
}

void write_feed_forward(JsonWriter& out, const NoFeedForward&) {
  out.begin_object();
  out.member("kind", "none");
  out.end_object();
}

std::string_view score_name(RouterScore score) {
  switch (score) {
    case RouterScore::kSoftmax: return "softmax";
    case RouterScore::kSigmoid: return "sigmoid";
    case RouterScore::kSqrtSoftplus: return "sqrt_softplus";
  }
  return "?";
}

void write_experts(JsonWriter& out, const MixtureOfExperts& moe) {
  const RouterSpec& router = moe.router;
  out.member("num_experts", router.num_experts);
  out.member("top_k", router.top_k);
  out.member("num_groups", router.num_groups);
  out.member("top_groups", router.top_groups);
  out.member("group_score", router.group_score == GroupScore::kMax ? "max" : "top_two_sum");
  out.member("score", score_name(router.score));
  if (router.by_token) out.member("by_token", true);
  out.member("router_bias", router.bias);
  out.member("router_correction", router.correction);
  out.member("normalize", router.normalize);
  out.member("sum_floor", router.sum_floor);
  out.member("sum_added", router.sum_added);
  out.member("scale", router.scale);
  if (router.expert_scale) out.member("expert_scale", true);
  out.member("intermediate_size", moe.intermediate_size);
  out.member("activation", activation_name(moe.activation));
  out.member("activation_limit", moe.activation_limit);
  out.member("bias", moe.bias);
  out.member("gated", moe.gated);
  out.member("weight_inputs", moe.weight_inputs);
  out.member("shared_intermediate_size", moe.shared_intermediate_size);
  out.member("shared_gate", moe.shared_gate);
}

void write_feed_forward(JsonWriter& out, const MixtureOfExperts& moe) {
  out.begin_object();
  out.member("kind", "mixture_of_experts");
  write_experts(out, moe);
  out.end_object();
}

void write_feed_forward(JsonWriter& out, const DenseBesideExperts& both) {
  out.begin_object();
  out.member("kind", "dense_beside_experts");
  out.member("router_scale", both.router_scale);
  out.key("dense");
  write_feed_forward(out, both.dense);
  out.key("experts");
  write_feed_forward(out, both.experts);
  out.end_object();
}

Status check_residual(const std::string& place, const ResidualSpec& residual, bool has_norm) {
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", residual.scale));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "keep", residual.keep));
  if (residual.normed && !has_norm) return malformed(place + "normed", "the block has no norm");
  if (residual.keep != 1.0f && !residual.normed) return malformed(place + "keep", "of a stream that is not normed");
  return {};
}

Status check_residuals(const std::string& place, const LayerSpec& layer) {
  HEADRACE_RETURN_IF_ERROR(
      check_residual(place + "attention_residual.", layer.attention_residual, layer.attention_norm));
  HEADRACE_RETURN_IF_ERROR(
      check_residual(place + "feed_forward_residual.", layer.feed_forward_residual, layer.feed_forward_norm));
  if (layer.parallel && (layer.attention_residual.normed || layer.feed_forward_residual.normed)) {
    return malformed(place + "parallel", "blocks side by side are added to the stream as it is");
  }
  if (!layer.attention_norm && state_floats(layer) > 0) {
    return malformed(place + "attention_norm", "a recurrent layer has one");
  }
  return {};
}

void write_residual(JsonWriter& out, const ResidualSpec& residual) {
  out.begin_object();
  out.member("normed", residual.normed);
  out.member("keep", residual.keep);
  out.member("scale", residual.scale);
  out.end_object();
}

Status check_feed_forward(const std::string&, const NoFeedForward&) { return {}; }

Status check_feed_forward(const std::string& place, const DenseFeedForward& dense) {
  if (dense.gate_cutoff) HEADRACE_RETURN_IF_ERROR(check_finite(place + "gate_cutoff", *dense.gate_cutoff));
  return check_range(place + "intermediate_size", dense.intermediate_size, 1, kMaxIntermediate);
}

Status check_feed_forward(const std::string& place, const MixtureOfExperts& moe) {
  const RouterSpec& router = moe.router;
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_experts", router.num_experts, 1, kMaxExperts));
  HEADRACE_RETURN_IF_ERROR(check_range(place + "num_groups", router.num_groups, 1, router.num_experts));
  if (router.num_experts % router.num_groups != 0) {
    return malformed(place + "num_groups", "{} experts are no multiple of {} groups", router.num_experts,
                     router.num_groups);
  }
  HEADRACE_RETURN_IF_ERROR(check_range(place + "top_groups", router.top_groups, 1, router.num_groups));
  HEADRACE_RETURN_IF_ERROR(
      check_range(place + "top_k", router.top_k, 1, router.num_experts / router.num_groups * router.top_groups));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "scale", router.scale));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "sum_floor", router.sum_floor));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "sum_added", router.sum_added));
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "activation_limit", moe.activation_limit));
  HEADRACE_RETURN_IF_ERROR(
      check_range(place + "shared_intermediate_size", moe.shared_intermediate_size, 0, kMaxIntermediate));
  return check_range(place + "intermediate_size", moe.intermediate_size, 1, kMaxIntermediate);
}

Status check_feed_forward(const std::string& place, const DenseBesideExperts& both) {
  HEADRACE_RETURN_IF_ERROR(check_finite(place + "router_scale", both.router_scale));
  HEADRACE_RETURN_IF_ERROR(check_feed_forward(place, both.dense));
  return check_feed_forward(place + "experts.", both.experts);
}

// A layer sees the keys and values of one before it that keeps its own, of the same shape.
Status check_kv_layer(const std::string& place, const ModelSpec& spec, size_t layer) {
  const auto* attention = std::get_if<GqaAttention>(&spec.layers[layer].attention);
  if (attention == nullptr || attention->kv_layer < 0) return {};
  HEADRACE_RETURN_IF_ERROR(
      check_range(place + "attention.kv_layer", attention->kv_layer, 0, static_cast<int64_t>(layer) - 1));
  const auto* owner = std::get_if<GqaAttention>(&spec.layers[static_cast<size_t>(attention->kv_layer)].attention);
  if (owner == nullptr || owner->kv_layer >= 0 || owner->head_dim != attention->head_dim ||
      owner->num_kv_heads != attention->num_kv_heads) {
    return malformed(place + "attention.kv_layer", "layer {} keeps no such keys and values", attention->kv_layer);
  }
  return {};
}

// Streams take the output of whole blocks, and nothing else.
Status check_hyper_connections(const ModelSpec& spec, const HyperConnections& hyper) {
  HEADRACE_RETURN_IF_ERROR(check_range("hc_mult", hyper.num_streams, 1, kMostGatedStreams));
  HEADRACE_RETURN_IF_ERROR(check_range("hc_sinkhorn_iters", hyper.iterations, 1, kMaxIterations));
  if (!(hyper.eps >= 0) || !std::isfinite(hyper.eps)) return malformed("hc_eps", "not a finite number of at least 0");
  if (spec.deep_embeddings > 0 || spec.per_layer_inputs) {
    return unsupported("hc_mult", "layers with inputs of their own beside several streams");
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const bool whole = layer.attention_norm && layer.feed_forward_norm &&
                       !std::holds_alternative<NoAttention>(layer.attention) &&
                       !std::holds_alternative<NoFeedForward>(layer.feed_forward);
    if (!whole || layer.parallel || layer.cross || layer.stream_norms || layer.output_scale || layer.laurel_rank > 0 ||
        layer.attention_residual.normed || layer.feed_forward_residual.normed ||
        std::holds_alternative<DenseBesideExperts>(layer.feed_forward)) {
      return unsupported(fmt::format("layers.{}", i), "a layer of this kind beside several streams");
    }
  }
  return {};
}

// Likewise the biases of one before it.
Status check_bucket_layer(const std::string& place, const ModelSpec& spec, size_t layer) {
  const auto* attention = std::get_if<GqaAttention>(&spec.layers[layer].attention);
  if (attention == nullptr || !attention->position_buckets || attention->position_buckets->layer < 0) return {};
  const PositionBuckets& shared = *attention->position_buckets;
  HEADRACE_RETURN_IF_ERROR(
      check_range(place + "attention.position_buckets.layer", shared.layer, 0, static_cast<int64_t>(layer) - 1));
  const auto* owner = std::get_if<GqaAttention>(&spec.layers[static_cast<size_t>(shared.layer)].attention);
  if (owner == nullptr || !owner->position_buckets || owner->num_heads != attention->num_heads ||
      owner->both_ways != attention->both_ways ||
      *owner->position_buckets != PositionBuckets{shared.num_buckets, shared.max_distance, -1}) {
    return malformed(place + "attention.position_buckets.layer", "layer {} has no such biases", shared.layer);
  }
  return {};
}

Status check_streams(const ModelSpec& spec) {
  if (const auto* hyper = std::get_if<HyperConnections>(&spec.streams)) return check_hyper_connections(spec, *hyper);
  const auto* altup = std::get_if<AltUp>(&spec.streams);
  if (altup == nullptr) return {};
  HEADRACE_RETURN_IF_ERROR(check_range("altup_num_inputs", altup->num_streams, 1, kMaxStreams));
  return check_range("altup_active_idx", altup->active, 0, altup->num_streams - 1);
}

Status check_per_layer_inputs(const ModelSpec& spec) {
  if (!spec.per_layer_inputs) return {};
  const PerLayerInputs& inputs = *spec.per_layer_inputs;
  HEADRACE_RETURN_IF_ERROR(check_range("hidden_size_per_layer_input", inputs.size, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range("vocab_size_per_layer_input", inputs.vocab_size, 1, kMaxVocab));
  HEADRACE_RETURN_IF_ERROR(check_finite("per_layer_inputs.table_scale", inputs.table_scale));
  HEADRACE_RETURN_IF_ERROR(check_finite("per_layer_inputs.projection_scale", inputs.projection_scale));
  return check_finite("per_layer_inputs.sum_scale", inputs.sum_scale);
}

std::string_view head_kind_name(HeadKind kind) {
  switch (kind) {
    case HeadKind::kVocabulary: return "vocabulary";
    case HeadKind::kLabels: return "labels";
    case HeadKind::kTransform: return "transform";
    case HeadKind::kNone: return "none";
  }
  return "?";
}

Status check_head(const ModelSpec& spec) {
  const HeadSpec& head = spec.head;
  HEADRACE_RETURN_IF_ERROR(check_finite("logit_scale", head.logit_scale));
  if (!std::isfinite(head.logit_softcap) || head.logit_softcap < 0) {
    return malformed("final_logit_softcapping", "not a finite number of at least 0");
  }
  if (head.kind == HeadKind::kLabels) {
    HEADRACE_RETURN_IF_ERROR(check_range("num_labels", head.num_labels, 1, kMaxVocab));
  }
  const bool pools = head.kind == HeadKind::kLabels || head.kind == HeadKind::kTransform;
  if (pools == (head.pooling == Pooling::kUnknown)) return internal_error("head", "the pooling does not go with it");
  if (head.kind == HeadKind::kTransform && !head.transform) return internal_error("head", "has no transform");
  return {};
}

// What not every model has.
void write_embedding(JsonWriter& out, const ModelSpec& spec) {
  if (spec.position_padding_id >= 0) out.member("position_padding_id", spec.position_padding_id);
  if (spec.token_types > 0) out.member("token_types", spec.token_types);
  if (spec.embedding_norm) out.member("embedding_norm", true);
  if (!spec.final_norm) out.member("final_norm", false);
  if (spec.position_axes != 1) out.member("position_axes", spec.position_axes);
  if (spec.deep_embeddings > 0) out.member("deep_embeddings", spec.deep_embeddings);
  if (const auto* altup = std::get_if<AltUp>(&spec.streams)) {
    out.key("altup");
    out.begin_object();
    out.member("num_streams", altup->num_streams);
    out.member("active", altup->active);
    out.member("output_scale", altup->output_scale);
    out.end_object();
  }
  if (const auto* hyper = std::get_if<HyperConnections>(&spec.streams)) {
    out.key("hyper_connections");
    out.begin_object();
    out.member("num_streams", hyper->num_streams);
    out.member("iterations", hyper->iterations);
    out.member("eps", hyper->eps);
    out.end_object();
  }
  if (!spec.per_layer_inputs) return;
  out.key("per_layer_inputs");
  out.begin_object();
  out.member("size", spec.per_layer_inputs->size);
  out.member("vocab_size", spec.per_layer_inputs->vocab_size);
  out.member("table_scale", spec.per_layer_inputs->table_scale);
  out.member("projection_scale", spec.per_layer_inputs->projection_scale);
  out.member("sum_scale", spec.per_layer_inputs->sum_scale);
  out.member("activation", activation_name(spec.per_layer_inputs->activation));
  out.end_object();
}

bool any_attention(const ModelSpec& spec, bool (*holds)(const GqaAttention&)) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    const auto* attention = std::get_if<GqaAttention>(&layer.attention);
    return attention != nullptr && holds(*attention);
  });
}

Status check_axes(const std::string& place, const LayerSpec& layer, int32_t num_axes) {
  const auto* attention = std::get_if<GqaAttention>(&layer.attention);
  if (attention == nullptr) return {};
  for (const int32_t axis : attention->rope.axes) {
    HEADRACE_RETURN_IF_ERROR(check_range(place + "rope.axes", axis, 0, num_axes - 1));
  }
  return {};
}

void write_head(JsonWriter& out, const HeadSpec& head) {
  if (head.kind != HeadKind::kVocabulary) out.member("head", head_kind_name(head.kind));
  if (head.kind == HeadKind::kLabels) out.member("num_labels", head.num_labels);
  if (head.pooling != Pooling::kUnknown) out.member("head_pooling", pooling_name(head.pooling));
  if (!head.transform) return;
  out.key("head_transform");
  out.begin_object();
  out.member("activation", activation_name(head.transform->activation));
  out.member("bias", head.transform->bias);
  out.member("norm", head.transform->norm);
  out.end_object();
}

}  // namespace

bool computes_whole_sequences(const ModelSpec& spec) {
  return attends_both_ways(spec) || spec.position_padding_id >= 0;
}

bool attends_both_ways(const ModelSpec& spec) {
  return any_attention(spec, [](const GqaAttention& attention) { return attention.both_ways; });
}

bool routes_by_token(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    const auto* moe = std::get_if<MixtureOfExperts>(&layer.feed_forward);
    const auto* both = std::get_if<DenseBesideExperts>(&layer.feed_forward);
    return (moe != nullptr && moe->router.by_token) || (both != nullptr && both->experts.router.by_token);
  });
}

bool has_spans(const ModelSpec& spec) {
  return any_attention(spec, [](const GqaAttention& attention) { return attention.spans != SpanKind::kIgnored; });
}

int64_t head_width(const ModelSpec& spec) {
  switch (spec.head.kind) {
    case HeadKind::kVocabulary: return spec.vocab_size;
    case HeadKind::kLabels: return spec.head.num_labels;
    case HeadKind::kTransform: return spec.hidden_size;
    case HeadKind::kNone: break;
  }
  return 0;
}

std::string_view pooling_name(Pooling pooling) {
  switch (pooling) {
    case Pooling::kUnknown: break;
    case Pooling::kMean: return "mean";
    case Pooling::kFirst: return "cls";
    case Pooling::kLast: return "last";
  }
  return "";
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return "silu";
    case Activation::kGeluTanh: return "gelu_tanh";
    case Activation::kGeluErf: return "gelu_erf";
    case Activation::kRelu: return "relu";
    case Activation::kRelu2: return "relu2";
    case Activation::kClampedSwish: return "clamped_swish";
    case Activation::kSigmoid: return "sigmoid";
    case Activation::kTanh: return "tanh";
    case Activation::kGeluSigmoid: return "gelu_sigmoid";
    case Activation::kClampedSilu: return "clamped_silu";
  }
  return "?";
}

Status validate_spec(const ModelSpec& spec) {
  const bool has_vocabulary = spec.head.kind == HeadKind::kVocabulary;
  HEADRACE_RETURN_IF_ERROR(check_range("vocab_size", spec.vocab_size, has_vocabulary ? 1 : 0, kMaxVocab));
  HEADRACE_RETURN_IF_ERROR(check_range("hidden_size", spec.hidden_size, 1, kMaxHidden));
  HEADRACE_RETURN_IF_ERROR(check_range("max_position_embeddings", spec.max_position_embeddings, 1, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_range("num_hidden_layers", static_cast<int64_t>(spec.layers.size()), 1, kMaxLayers));
  HEADRACE_RETURN_IF_ERROR(check_finite("embedding_scale", spec.embedding_scale));
  HEADRACE_RETURN_IF_ERROR(check_range("learned_positions", spec.learned_positions, 0, kMaxPositions));
  HEADRACE_RETURN_IF_ERROR(check_range("pad_token_id", spec.position_padding_id, -1, spec.vocab_size - 1));
  if (spec.learned_positions > 0) {
    HEADRACE_RETURN_IF_ERROR(check_range("max_position_embeddings", spec.max_position_embeddings, 1,
                                         spec.learned_positions - spec.position_padding_id - 1));
  }
  HEADRACE_RETURN_IF_ERROR(check_range("type_vocab_size", spec.token_types, 0, kMaxVocab));
  if (!(spec.norm_eps > 0) || !std::isfinite(spec.norm_eps)) return malformed("norm_eps", "must be a positive number");
  HEADRACE_RETURN_IF_ERROR(check_head(spec));
  HEADRACE_RETURN_IF_ERROR(check_range("position_axes", spec.position_axes, 1, kMaxAxes));
  HEADRACE_RETURN_IF_ERROR(
      check_range("deep_embeddings", spec.deep_embeddings, 0, static_cast<int64_t>(spec.layers.size()) - 1));
  HEADRACE_RETURN_IF_ERROR(check_per_layer_inputs(spec));
  HEADRACE_RETURN_IF_ERROR(check_streams(spec));
  int64_t parts = 0;
  int32_t top_k = -1;  // of the last indexer so far
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string place = fmt::format("layers.{}.", i);
    if (const auto* latent = std::get_if<LatentAttention>(&spec.layers[i].attention)) parts += latent->num_heads;
    if (const auto* sparse = std::get_if<SparseLatentAttention>(&spec.layers[i].attention)) {
      parts += sparse->latent.num_heads;
      if (sparse->indexer) top_k = sparse->top_k;
      if (sparse->top_k != top_k) {
        return malformed(place + "attention.indexer", "no layer before has one that chooses {} positions",
                         sparse->top_k);
      }
    }
    if (const auto* compressed = std::get_if<CompressedAttention>(&spec.layers[i].attention)) {
      parts += compressed->output_groups;
    }
    if (const auto* moe = std::get_if<MixtureOfExperts>(&spec.layers[i].feed_forward)) parts += moe->router.num_experts;
    if (const auto* both = std::get_if<DenseBesideExperts>(&spec.layers[i].feed_forward)) {
      parts += both->experts.router.num_experts;
    }
    if (parts > kMaxParts) return malformed(place + "num_experts", "more than {} experts and heads so far", kMaxParts);
    HEADRACE_RETURN_IF_ERROR(check_residuals(place, spec.layers[i]));
    HEADRACE_RETURN_IF_ERROR(check_axes(place, spec.layers[i], spec.position_axes));
    HEADRACE_RETURN_IF_ERROR(check_kv_layer(place, spec, i));
    HEADRACE_RETURN_IF_ERROR(check_bucket_layer(place, spec, i));
    HEADRACE_RETURN_IF_ERROR(check_cross(place, spec.layers[i]));
    HEADRACE_RETURN_IF_ERROR(check_range(place + "laurel_rank", spec.layers[i].laurel_rank, 0, kMaxHidden));
    if (spec.layers[i].laurel_rank > 0 && (!spec.layers[i].attention_norm || spec.layers[i].parallel)) {
      return malformed(place + "laurel_rank", "goes with a norm before attention alone");
    }
    HEADRACE_RETURN_IF_ERROR(
        std::visit([&](const auto& attention) { return check_attention(place + "attention.", attention); },
                   spec.layers[i].attention));
    HEADRACE_RETURN_IF_ERROR(
        std::visit([&](const auto& block) { return check_feed_forward(place + "feed_forward.", block); },
                   spec.layers[i].feed_forward));
  }
  // The head may be larger than the tokens in use, never smaller: an id beyond it could not be embedded.
  for (const int32_t id : spec.eos_token_ids) {
    HEADRACE_RETURN_IF_ERROR(check_range("eos_token_id", id, 0, spec.vocab_size - 1));
  }
  return check_range("bos_token_id", spec.bos_token_id, -1, spec.vocab_size - 1);
}

void write_spec(JsonWriter& out, const ModelSpec& spec, bool with_frequencies) {
  out.member("architecture", spec.architecture);
  out.member("vocab_size", spec.vocab_size);
  out.member("hidden_size", spec.hidden_size);
  out.member("max_position_embeddings", spec.max_position_embeddings);
  out.member("embedding_scale", spec.embedding_scale);
  out.member("learned_positions", spec.learned_positions);
  write_embedding(out, spec);
  out.member("norm", spec.norm == NormKind::kRms ? "rms" : "layer");
  out.member("norm_bias", spec.norm_bias);
  out.member("norm_eps", spec.norm_eps);
  out.member("norm_weight_offset", spec.norm_weight_offset);
  out.member("tied", spec.head.tied);
  out.member("final_logit_softcap", spec.head.logit_softcap);
  out.member("logit_scale", spec.head.logit_scale);
  out.member("head_bias", spec.head.bias);
  write_head(out, spec.head);
  out.key("layers");
  out.begin_array();
  for (const LayerSpec& layer : spec.layers) {
    out.begin_object();
    out.key("attention");
    std::visit([&](const auto& attention) { write_attention(out, attention, with_frequencies); }, layer.attention);
    if (layer.cross) write_cross(out, *layer.cross);
    out.key("feed_forward");
    std::visit([&](const auto& block) { write_feed_forward(out, block); }, layer.feed_forward);
    out.member("attention_norm", layer.attention_norm);
    out.member("feed_forward_norm", layer.feed_forward_norm);
    out.member("parallel", layer.parallel);
    if (layer.stream_norms) out.member("stream_norms", true);
    if (layer.output_scale) out.member("output_scale", true);
    if (layer.laurel_rank > 0) out.member("laurel_rank", layer.laurel_rank);
    out.member("residual_scale", layer.attention_residual.scale);  // of both blocks in most models
    out.key("attention_residual");
    write_residual(out, layer.attention_residual);
    out.key("feed_forward_residual");
    write_residual(out, layer.feed_forward_residual);
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
