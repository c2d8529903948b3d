#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "model/blocks.h"
#include "model/encoder_memory.h"
#include "model/mixer.h"
#include "model/rope_length.h"

namespace headrace {

namespace {

// Floats per row of each buffer of the workspace.
struct Widths {
  MixerSizes mixer;
  int64_t hidden = 0, q = 0, kv = 0, attention = 0, q_latent = 0, latent_q = 0, index_q = 0, index_k = 0,
          index_heads = 0, selected = 0, per_layer = 0, second = 0, streams = 0, stream_gates = 0, laurel = 0,
          intermediate = 0, experts = 0, top_k = 0, visited = 0, adapted_visit = 0, run_values = 0, run_rows = 0;

  explicit Widths(const ModelSpec& spec) : hidden(spec.hidden_size) {
    if (spec.per_layer_inputs) {
      per_layer = static_cast<int64_t>(spec.layers.size()) * spec.per_layer_inputs->size;
    }
    if (const auto* altup = std::get_if<AltUp>(&spec.streams)) streams = altup->num_streams;
    if (const auto* hyper = std::get_if<HyperConnections>(&spec.streams)) {
      streams = hyper->num_streams;
      stream_gates = streams * (streams + 2);
    }
    for (const LayerSpec& layer : spec.layers) laurel = std::max<int64_t>(laurel, layer.laurel_rank);
    for (const LayerSpec& layer : spec.layers) {
      std::visit([&](const auto& kind) { add(kind); }, layer.attention);
      if (layer.cross) {
        q = std::max(q, int64_t{layer.cross->num_heads} * layer.cross->head_dim);
        attention = std::max(attention, int64_t{layer.cross->num_heads} * layer.cross->head_dim);
      }
      std::visit([&](const auto& block) { add(block); }, layer.feed_forward);
    }
  }
  // Experts are counted with what the backend holds of their rows: inner values of gate and up, and outputs.
  int64_t total() const {
    return 3 * hidden + q + attention + q_latent + latent_q + index_q + index_k + index_heads + selected +
           2 * per_layer + second + laurel + streams * (2 * hidden + streams + 2) + stream_gates + 2 * kv +
           2 * intermediate + 2 * run_values + run_rows + experts + 3 * top_k + visited + mixer.in + mixer.conv +
           mixer.gate + mixer.step + mixer.decay + mixer.out;
  }

 private:
  void add(const GqaAttention& gqa) {
    q = std::max(q, int64_t{gqa.num_heads} * gqa.head_dim);
    attention = std::max(attention, int64_t{gqa.num_heads} * gqa.head_dim);
    kv = std::max(kv, int64_t{gqa.num_kv_heads} * gqa.head_dim);
    if (gqa.output_gate) mixer.gate = std::max(mixer.gate, int64_t{gqa.num_heads} * gqa.head_dim);
  }
  void add(const LatentAttention& spec) {
    const int64_t heads = spec.num_heads;
    q = std::max(q, heads * std::max<int64_t>(spec.nope_dim + spec.rope_dim, spec.v_dim));
    kv = std::max<int64_t>(kv, spec.key_dim());
    attention = std::max(attention, heads * spec.key_dim());
    q_latent = std::max<int64_t>(q_latent, spec.q_rank);
    latent_q = std::max(latent_q, heads * spec.key_dim());
  }
  void add(const SparseLatentAttention& spec) {
    add(spec.latent);
    selected = std::max<int64_t>(selected, spec.top_k);
    if (!spec.indexer) return;
    index_q = std::max(index_q, int64_t{spec.indexer->num_heads} * spec.indexer->head_dim);
    index_k = std::max<int64_t>(index_k, spec.indexer->head_dim);
    index_heads = std::max<int64_t>(index_heads, spec.indexer->num_heads);
  }
  void add(const CompressedAttention& spec) {
    const int64_t width = int64_t{spec.num_heads} * spec.head_dim;
    q = std::max({q, width, int64_t{spec.output_groups} * spec.output_rank});
    attention = std::max(attention, width);
    kv = std::max<int64_t>(kv, spec.head_dim);
    q_latent = std::max<int64_t>(q_latent, spec.q_rank);
    if (!spec.compressor) return;
    int64_t head_dim = spec.head_dim;
    if (spec.indexer) {
      head_dim = std::max<int64_t>(head_dim, spec.indexer->head_dim);
      selected = std::max<int64_t>(selected, spec.indexer->top_k);
      index_q = std::max(index_q, int64_t{spec.indexer->num_heads} * spec.indexer->head_dim);
      index_heads = std::max<int64_t>(index_heads, spec.indexer->num_heads);
    }
    run_values = std::max(run_values, spec.compressor->values(head_dim));
    run_rows = std::max(run_rows, head_dim);
  }
  template <class Mixer>
  void add(const Mixer& spec) {
    const MixerSizes sizes = mixer_sizes(spec);
    for (int64_t MixerSizes::*size : {&MixerSizes::in, &MixerSizes::conv, &MixerSizes::gate, &MixerSizes::step,
                                      &MixerSizes::decay, &MixerSizes::out}) {
      mixer.*size = std::max(mixer.*size, sizes.*size);
    }
  }
  void add(const AttentionBesideMamba& both) {
    add(both.attention);
    add(both.mamba);
  }
  void add(const NoFeedForward&) {}
  void add(const DenseBesideExperts& both) {
    second = hidden;
    add(both.dense);
    add(both.experts);
  }
  void add(const DenseFeedForward& dense) { intermediate = std::max<int64_t>(intermediate, dense.intermediate_size); }
  void add(const MixtureOfExperts& moe) {
    intermediate = std::max<int64_t>(intermediate, moe.shared_intermediate_size);
    experts = std::max<int64_t>(experts, moe.router.num_experts);
    top_k = std::max<int64_t>(top_k, moe.router.top_k);
    const int64_t inner = moe.intermediate_size;
    visited = std::max(visited, int64_t{moe.router.top_k} * (2 * inner + hidden));
    adapted_visit = std::max(adapted_visit, (int64_t{moe.router.top_k} + 1) * hidden + 2 * inner);
  }
};

// Whether something is added to the residual stream that a linear op cannot add itself.
bool needs_branch(const ModelSpec& spec) {
  if (spec.learned_positions > 0 || spec.token_types > 0 || spec.head.transform || spec.per_layer_inputs ||
      !std::holds_alternative<OneStream>(spec.streams)) {
    return true;
  }
  return std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    return layer.post_attention_norm || layer.post_feed_forward_norm || layer.attention_residual.scale != 1.0f ||
           layer.feed_forward_residual.scale != 1.0f || layer.laurel_rank > 0 ||
           std::holds_alternative<DenseBesideExperts>(layer.feed_forward);
  });
}

std::vector<CachePart> cache_parts(KvCache& cache) {
  std::vector<CachePart> parts;
  for (const KvLayout& layout : cache.config().layers) {
    parts.push_back({layout, cache.layer_data(static_cast<int32_t>(parts.size()))});
  }
  return parts;
}

// Runs of rows that adapters serve. With `rows` (ascending) of those alone, as they follow each other.
std::vector<AdapterRows> adapter_rows(const Batch& batch, const std::vector<int32_t>* rows = nullptr) {
  std::vector<AdapterRows> out;
  const auto place = [&](int32_t row) {
    if (rows == nullptr) return int64_t{row};
    return static_cast<int64_t>(std::lower_bound(rows->begin(), rows->end(), row) - rows->begin());
  };
  for (size_t seq = 0; seq < batch.adapters.size(); ++seq) {
    const int64_t begin = place(batch.query_start[seq]), end = place(batch.query_start[seq + 1]);
    if (batch.adapters[seq] == nullptr || begin == end) continue;
    if (!out.empty() && out.back().adapter == batch.adapters[seq] && out.back().begin + out.back().count == begin) {
      out.back().count += end - begin;
    } else {
      out.push_back({batch.adapters[seq], begin, end - begin});
    }
  }
  return out;
}

}  // namespace

ForwardPass::ForwardPass(const ModelSpec& spec, const ModelWeights& weights, Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend), memory_(backend.memory()) {
  for (OpFloats* floats : {&work_.x, &work_.normed, &work_.q, &work_.k, &work_.v, &work_.attention, &work_.gate,
                           &work_.up, &work_.branch, &work_.logits}) {
    floats->place_in(memory_);
  }
  part_starts_.push_back(0);
  for (const LayerSpec& layer : spec.layers) part_starts_.push_back(part_starts_.back() + num_cache_parts(layer));
  int32_t num_memory_parts = 0;
  for (const LayerSpec& layer : spec.layers) {
    memory_parts_.push_back(num_memory_parts);
    num_memory_parts += layer.cross ? 1 : 0;
  }
  rotates_by_length_ = longest_of_rope_length(spec, 0) != std::numeric_limits<int64_t>::max();
  first_free_ = spec.layers.size();
  const auto first_shallow = static_cast<size_t>(spec.deep_embeddings);
  while (first_free_ > first_shallow && keeps_nothing(spec.layers[first_free_ - 1])) --first_free_;
}

// Of a layer that keeps none of its own, those that it sees.
std::span<const CachePart> ForwardPass::parts_of_layer(std::span<const CachePart> parts, size_t layer) const {
  const auto* attention = std::get_if<GqaAttention>(&spec_.layers[layer].attention);
  if (attention != nullptr && attention->kv_layer >= 0) layer = static_cast<size_t>(attention->kv_layer);
  return parts.subspan(part_starts_[layer], part_starts_[layer + 1] - part_starts_[layer]);
}

uint64_t ForwardPass::workspace_bytes(const ModelSpec& spec, int64_t num_rows) {
  return static_cast<uint64_t>(Widths(spec).total()) * static_cast<uint64_t>(num_rows) * sizeof(float);
}

Status ForwardPass::grow(int64_t num_rows) {
  if (num_rows <= capacity_) return {};
  capacity_ = 0;  // what has to grow is given up before there is room for more
  const Widths widths(spec_);
  const auto rows = static_cast<size_t>(num_rows);
  try {
    work_.x.resize(rows * static_cast<size_t>(widths.hidden));
    work_.normed.resize(rows * static_cast<size_t>(widths.hidden));
    if (needs_branch(spec_)) work_.branch.resize(rows * static_cast<size_t>(widths.hidden));
    work_.q.resize(rows * static_cast<size_t>(widths.q));
    work_.attention.resize(rows * static_cast<size_t>(widths.attention));
    work_.q_latent.resize(rows * static_cast<size_t>(widths.q_latent));
    work_.latent_q.resize(rows * static_cast<size_t>(widths.latent_q));
    work_.index_q.resize(rows * static_cast<size_t>(widths.index_q));
    work_.index_k.resize(rows * static_cast<size_t>(widths.index_k));
    work_.index_weights.resize(rows * static_cast<size_t>(widths.index_heads));
    work_.selected.resize(rows * static_cast<size_t>(widths.selected));
    work_.num_selected.resize(rows);
    work_.per_layer.resize(rows * static_cast<size_t>(widths.per_layer));
    work_.per_layer_rows.resize(rows * static_cast<size_t>(widths.per_layer));
    work_.second.resize(rows * static_cast<size_t>(widths.second));
    work_.streams.resize(rows * static_cast<size_t>(widths.streams * widths.hidden));
    work_.predicted.resize(rows * static_cast<size_t>(widths.streams * widths.hidden));
    work_.coefficients.resize(rows * static_cast<size_t>(widths.streams * widths.streams));
    work_.modalities.resize(rows * static_cast<size_t>(widths.streams));
    work_.stream_gates.resize(rows * static_cast<size_t>(widths.stream_gates));
    work_.stream_sums.resize(rows * static_cast<size_t>(widths.streams));
    work_.run_values.resize(rows * static_cast<size_t>(widths.run_values));
    work_.run_gates.resize(rows * static_cast<size_t>(widths.run_values));
    work_.run_rows.resize(rows * static_cast<size_t>(widths.run_rows));
    work_.run_entries.resize(rows);
    work_.run_positions.resize(rows);
    work_.run_slots.resize(rows);
    work_.laurel.resize(rows * static_cast<size_t>(widths.laurel));
    work_.k.resize(rows * static_cast<size_t>(widths.kv));
    work_.v.resize(rows * static_cast<size_t>(widths.kv));
    work_.q_scale.resize(rows);
    work_.inv_freq.resize(static_cast<size_t>(most_dynamic_pairs(spec_)));
    work_.table_rows.resize(rows);
    work_.sequence_ends.resize(rows);
    work_.gate.resize(rows * static_cast<size_t>(widths.intermediate));
    work_.up.resize(rows * static_cast<size_t>(widths.intermediate));
    work_.mixer_in.resize(rows * static_cast<size_t>(widths.mixer.in));
    work_.conv.resize(rows * static_cast<size_t>(widths.mixer.conv));
    work_.gate_in.resize(rows * static_cast<size_t>(widths.mixer.gate));
    work_.step.resize(rows * static_cast<size_t>(widths.mixer.step));
    work_.decay.resize(rows * static_cast<size_t>(widths.mixer.decay));
    work_.mixed.resize(rows * static_cast<size_t>(widths.mixer.out));
    work_.router.resize(rows * static_cast<size_t>(widths.experts));
    work_.token_ids.resize(rows);
    work_.given.resize(rows * static_cast<size_t>(widths.top_k));
    work_.experts.resize(rows * static_cast<size_t>(widths.top_k));
    work_.expert_weights.resize(rows * static_cast<size_t>(widths.top_k));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", num_rows);
  }
  capacity_ = num_rows;
  return {};
}

Status ForwardPass::grow_adapted(const std::vector<AdapterRows>& adapters, int64_t num_rows) {
  if (adapters.empty()) return {};
  int64_t rank = 0, visit = 0;
  for (const AdapterRows& rows : adapters) {
    rank = std::max(rank, rows.adapter->max_rank());
    if (rows.adapter->adapts_experts() && visit == 0) visit = Widths(spec_).adapted_visit;
  }
  const auto size = static_cast<size_t>(num_rows);
  try {
    work_.adapted.resize(std::max(work_.adapted.size(), static_cast<size_t>(rank) * size));
    work_.visits.resize(std::max(work_.visits.size(), static_cast<size_t>(visit) * size));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for adapters of {} rows", num_rows);
  }
  return {};
}

Status ForwardPass::check_adapters(const Batch& batch) const {
  if (batch.adapters.empty()) return {};
  if (batch.adapters.size() != batch.block_tables.size()) return invalid_argument("adapters", "not one per sequence");
  for (const Adapter* adapter : batch.adapters) {
    if (adapter != nullptr && &adapter->model()->weights() != &weights_) {
      return invalid_argument("adapters", "one is of another model");
    }
  }
  return {};
}

// A row beyond what its sequence's rotation serves would be scored by the wrong one.
Status ForwardPass::check_rope_lengths(const Batch& batch) const {
  if (!batch.rope_lengths.empty() && batch.rope_lengths.size() != batch.block_tables.size()) {
    return invalid_argument("rope_lengths", "not one per sequence");
  }
  for (size_t seq = 0; seq < batch.block_tables.size(); ++seq) {
    const int64_t length = batch.rope_lengths.empty() ? 0 : batch.rope_lengths[seq];
    if (length < 0 || (rotates_by_length_ ? rope_length(spec_, length) : 0) != length) {
      return invalid_argument("rope_lengths", "sequence {}: {} names no rotation", seq, length);
    }
    if (!rotates_by_length_ || batch.query_start[seq] == batch.query_start[seq + 1]) continue;
    const int32_t last = batch.positions[static_cast<size_t>(batch.query_start[seq + 1]) - 1];
    if (last < longest_of_rope_length(spec_, length)) continue;
    return invalid_argument("positions", "sequence {}: {} is beyond the {} tokens that its rotation serves", seq, last,
                            longest_of_rope_length(spec_, length));
  }
  return {};
}

Status ForwardPass::check(const Batch& batch, const KvCache& cache) const {
  const int64_t rows = batch.num_tokens();
  const auto& layouts = cache.config().layers;
  if (cache.config().state_floats != state_floats(spec_)) {
    return invalid_argument("cache", "its recurrent states are not those of the model");
  }
  if (layouts.empty() || layouts != kv_layouts(spec_, layouts[0].dtype, layouts[0].block_size)) {
    return invalid_argument("cache", "its layouts are not those of the model");
  }
  if (static_cast<int64_t>(batch.positions.size()) != rows) return invalid_argument("positions", "not one per token");
  if (static_cast<int64_t>(batch.slots.size()) != rows) return invalid_argument("slots", "not one per token");
  if (batch.query_start.size() != batch.block_tables.size() + 1 || batch.query_start.front() != 0 ||
      batch.query_start.back() != rows || !std::is_sorted(batch.query_start.begin(), batch.query_start.end())) {
    return invalid_argument("query_start", "must rise from 0 to the number of tokens, one entry more than sequences");
  }
  const int64_t num_slots = cache.config().num_blocks * layouts[0].block_size;
  size_t embeddings = 0;  // of rows before this one
  const int32_t last_position = spec_.learned_positions - spec_.position_padding_id - 1;
  for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
    const bool embedded =
        embeddings < batch.embedded_rows.size() && batch.embedded_rows[embeddings] == static_cast<int32_t>(i);
    embeddings += embedded ? 1 : 0;
    if (!embedded && (batch.token_ids[i] < 0 || batch.token_ids[i] >= spec_.vocab_size)) {
      return invalid_argument("token_ids", "row {}: id {} is outside the vocabulary of {}", i, batch.token_ids[i],
                              spec_.vocab_size);
    }
    if (batch.positions[i] < 0) return invalid_argument("positions", "row {}: {} is negative", i, batch.positions[i]);
    if (spec_.learned_positions > 0 && batch.positions[i] >= last_position) {
      return invalid_argument("positions", "row {}: {} is beyond the {} positions the model has", i, batch.positions[i],
                              last_position);
    }
    if (batch.slots[i] < 0 || batch.slots[i] >= num_slots) {
      return invalid_argument("slots", "row {}: {} is outside the cache of {} slots", i, batch.slots[i], num_slots);
    }
  }
  HEADRACE_RETURN_IF_ERROR(check_adapters(batch));
  HEADRACE_RETURN_IF_ERROR(check_rope_lengths(batch));
  HEADRACE_RETURN_IF_ERROR(check_states(batch));
  HEADRACE_RETURN_IF_ERROR(check_images(batch));
  HEADRACE_RETURN_IF_ERROR(check_memories(batch, layouts[0]));
  HEADRACE_RETURN_IF_ERROR(check_whole_sequences(batch));
  if (!batch.token_types.empty() && static_cast<int64_t>(batch.token_types.size()) != rows) {
    return invalid_argument("token_types", "not one per token");
  }
  for (size_t i = 0; i < batch.token_types.size(); ++i) {
    if (batch.token_types[i] >= 0 && batch.token_types[i] < std::max(spec_.token_types, 1)) continue;
    return invalid_argument("token_types", "row {}: the model has no segment {}", i, batch.token_types[i]);
  }
  HEADRACE_RETURN_IF_ERROR(check_taps(batch));
  int64_t last = -1;
  for (const int32_t row : batch.logits_rows) {
    if (row <= last || row >= rows) return invalid_argument("logits_rows", "row {} is out of order or range", row);
    last = row;
  }
  return {};
}

Status ForwardPass::check_states(const Batch& batch) const {
  if (state_floats(spec_) == 0) return {};
  const auto absent = [](const float* state) { return state == nullptr; };
  if (batch.states.size() != batch.block_tables.size() || std::ranges::any_of(batch.states, absent)) {
    return invalid_argument("states", "not one per sequence");
  }
  if (batch.snapshot_rows.size() != batch.snapshots.size() || std::ranges::any_of(batch.snapshots, absent)) {
    return invalid_argument("snapshots", "not one per row");
  }
  int64_t last = -1;
  for (const int32_t row : batch.snapshot_rows) {
    if (row <= last || row >= batch.num_tokens()) {
      return invalid_argument("snapshot_rows", "row {} is out of order or range", row);
    }
    last = row;
  }
  return {};
}

// All are of the type of the cache, as one op reads them.
Status ForwardPass::check_memories(const Batch& batch, const KvLayout& layout) const {
  const std::vector<KvLayout> layouts = memory_layouts(spec_, layout.dtype, layout.block_size);
  if (layouts.empty()) return {};
  const auto fits = [&](const EncoderMemory* memory) {
    return memory != nullptr && memory->num_rows > 0 && memory->cache->config().layers == layouts;
  };
  if (batch.memories.size() == batch.block_tables.size() && std::ranges::all_of(batch.memories, fits)) return {};
  return invalid_argument("memories", "not one of this model's, in the cache's type, per sequence");
}

Status ForwardPass::check_images(const Batch& batch) const {
  const auto rows = static_cast<size_t>(batch.num_tokens());
  int64_t last = -1;
  for (const int32_t row : batch.embedded_rows) {
    if (row <= last || row >= batch.num_tokens()) {
      return invalid_argument("embedded_rows", "row {} is out of order or range", row);
    }
    last = row;
  }
  const auto absent = [](const float* embedding) { return embedding == nullptr; };
  if (!batch.embedded_rows.empty() && routes_by_token(spec_)) {
    return invalid_argument("embedded_rows", "experts of {} are chosen by token", spec_.architecture);
  }
  if (batch.embeddings.size() != batch.embedded_rows.size() || std::ranges::any_of(batch.embeddings, absent)) {
    return invalid_argument("embeddings", "not one per row");
  }
  if (!batch.rope_positions.empty() &&
      (batch.rope_positions.size() != rows * static_cast<size_t>(spec_.position_axes) ||
       std::ranges::any_of(batch.rope_positions, [](int32_t position) { return position < 0; }))) {
    return invalid_argument("rope_positions", "not {} per token, none negative", spec_.position_axes);
  }
  if (batch.spans.empty()) return {};
  if (batch.spans.size() != 2 * rows) return invalid_argument("spans", "not one per token");
  for (int32_t seq = 0; seq < batch.num_seqs(); ++seq) {
    const auto begin = static_cast<size_t>(batch.query_start[static_cast<size_t>(seq)]);
    const auto end = static_cast<size_t>(batch.query_start[static_cast<size_t>(seq) + 1]);
    for (size_t row = begin; row < end; ++row) {
      const int32_t span_begin = batch.spans[2 * row], span_end = batch.spans[2 * row + 1];
      if (span_begin == 0 && span_end == 0) continue;
      const int32_t position = batch.positions[row], stored = batch.positions[end - 1] + 1;
      if (span_begin >= 0 && span_begin <= position && position < span_end && span_end <= stored) continue;
      return invalid_argument("spans", "row {}: [{}, {}) is not around its position {}, or not stored by then", row,
                              span_begin, span_end, position);
    }
  }
  return {};
}

Status ForwardPass::check_whole_sequences(const Batch& batch) const {
  if (!computes_whole_sequences(spec_)) return {};
  for (int32_t seq = 0; seq < batch.num_seqs(); ++seq) {
    const int32_t begin = batch.query_start[static_cast<size_t>(seq)];
    const int32_t end = batch.query_start[static_cast<size_t>(seq) + 1];
    if (begin == end) return invalid_argument("query_start", "sequence {} is empty", seq);
    for (int32_t row = begin; row < end; ++row) {
      if (batch.positions[static_cast<size_t>(row)] == row - begin) continue;
      return invalid_argument("positions", "row {}: sequences of {} are computed whole", row, spec_.architecture);
    }
  }
  return {};
}

// Of what ops see, for the program.
void ForwardPass::read_floats(const float* from, int64_t count, float* to) const {
  if (memory_ == nullptr) {
    std::copy_n(from, count, to);
  } else {
    memory_->read(from, to, static_cast<size_t>(count) * sizeof(float));
  }
}

void ForwardPass::observe(int32_t layer, int64_t num_rows) {
  if (!observer_) return;
  if (memory_ == nullptr) return observer_(layer, work_.x.data(), num_rows);
  std::vector<float> rows(static_cast<size_t>(num_rows * spec_.hidden_size));
  read_floats(work_.x.data(), num_rows * spec_.hidden_size, rows.data());
  observer_(layer, rows.data(), num_rows);
}

// What follows the blocks of a layer; inputs [num_rows, size]: the layer's own, or null.
void ForwardPass::finish_layer(const StepContext& step, size_t layer, const float* inputs) {
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t count = step.num_rows * spec_.hidden_size;
  if (inputs != nullptr) {
    gate_per_layer(step, *spec_.per_layer_inputs, weights.per_layer, work_.x.data(), inputs);
    backend_.add({work_.branch.data(), work_.x.data(), count});
  }
  if (!weights.output_scale.empty()) backend_.scale({work_.x.data(), count, weights.output_scale[0]});
}

// Moves the listed (ascending) rows to the front.
template <class T>
void ForwardPass::keep_rows(const std::vector<int32_t>& rows, T* values, int64_t width) const {
  if (width == 0) return;  // layers of this kind have no such values
  const auto row_values = static_cast<size_t>(width);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = static_cast<size_t>(rows[i]);
    if (from != i) std::memcpy(&values[i * row_values], &values[from * row_values], row_values * sizeof(T));
  }
}

// Likewise of what ops see.
void ForwardPass::keep_op_rows(const std::vector<int32_t>& rows, float* values, int64_t width) const {
  if (memory_ == nullptr) return keep_rows(rows, values, width);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = static_cast<size_t>(rows[i]);
    const auto size = static_cast<size_t>(width);
    if (from != i) memory_->copy(values + from * size, values + i * size, size * sizeof(float));
  }
}

// Likewise of the streams of all rows.
void ForwardPass::keep_streams(const std::vector<int32_t>& rows, int64_t stream_rows) {
  if (const auto* altup = std::get_if<AltUp>(&spec_.streams)) {
    for (int32_t s = 0; s < altup->num_streams; ++s) {
      keep_rows(rows, work_.streams.data() + s * stream_rows * spec_.hidden_size, spec_.hidden_size);
    }
  } else if (const auto* hyper = std::get_if<HyperConnections>(&spec_.streams)) {
    const int64_t count = hyper->num_streams;
    keep_rows(rows, work_.streams.data(), count * spec_.hidden_size);
    keep_rows(rows, work_.coefficients.data(), count * count);
    keep_rows(rows, work_.modalities.data(), count);
  }
}

// Leaves only the rows that are wanted, for layers that store nothing; their batch.
Batch ForwardPass::drop_rows(StepContext& step, const Batch& batch) {
  Batch kept;
  kept.query_start = {0};
  kept.block_tables = batch.block_tables;
  kept.adapters = batch.adapters;
  kept.rope_lengths = batch.rope_lengths;
  kept.memories = batch.memories;
  auto row = work_.wanted.begin();
  for (size_t seq = 0; seq + 1 < batch.query_start.size(); ++seq) {
    for (; row != work_.wanted.end() && *row < batch.query_start[seq + 1]; ++row) {
      const auto at = static_cast<size_t>(*row);
      kept.token_ids.push_back(batch.token_ids[at]);
      kept.positions.push_back(batch.positions[at]);
      kept.slots.push_back(batch.slots[at]);
      const auto append = [&](const std::vector<int32_t>& from, size_t width, std::vector<int32_t>& to) {
        for (size_t i = at * width; i < (at + 1) * width && !from.empty(); ++i) to.push_back(from[i]);
      };
      append(batch.rope_positions, static_cast<size_t>(spec_.position_axes), kept.rope_positions);
      append(batch.spans, 2, kept.spans);
      kept.logits_rows.push_back(static_cast<int32_t>(kept.logits_rows.size()));
    }
    kept.query_start.push_back(static_cast<int32_t>(kept.logits_rows.size()));
  }
  // Of several groups of rows, one after the other.
  const auto keep = [&](float* values, size_t groups, int64_t width) {
    const int64_t rows = batch.num_tokens(), wanted = kept.num_tokens();
    for (size_t group = 0; group < groups; ++group) {
      float* const from = values + static_cast<int64_t>(group) * rows * width;
      keep_rows(work_.wanted, from, width);
      std::memmove(values + static_cast<int64_t>(group) * wanted * width, from,
                   static_cast<size_t>(wanted * width) * sizeof(float));
    }
  };
  keep_op_rows(work_.wanted, work_.x.data(), spec_.hidden_size);
  if (const auto* altup = std::get_if<AltUp>(&spec_.streams)) {
    keep(work_.streams.data(), static_cast<size_t>(altup->num_streams), spec_.hidden_size);
  } else {
    keep_streams(work_.wanted, batch.num_tokens());
  }
  if (routes_by_token(spec_)) keep_rows(work_.wanted, work_.token_ids.data(), 1);
  if (spec_.per_layer_inputs) keep(work_.per_layer.data(), spec_.layers.size(), spec_.per_layer_inputs->size);
  step.num_rows = kept.num_tokens();
  work_.adapters = adapter_rows(kept);
  step.adapters = work_.adapters;
  if (!kept.memories.empty()) work_.memory = memory_rows(kept);
  return kept;
}

// False where nothing past the layer's attention is wanted. Drops rows in the last layer.
bool ForwardPass::run_layer(StepContext& step, size_t i, const Batch& batch, const LayerCache& cache) {
  const auto* const altup = std::get_if<AltUp>(&spec_.streams);
  const auto* const hyper = std::get_if<HyperConnections>(&spec_.streams);
  const LayerSpec& layer = spec_.layers[i];
  const LayerWeights& weights = weights_.layers[i];
  // Past the last layer's attention only rows that are wanted matter; rows are independent, so
  // leaving the others out changes no bit of them.
  const auto wanted = static_cast<int64_t>(work_.wanted.size());
  const bool last_rows_only = i + 1 == spec_.layers.size() && wanted < batch.num_tokens() && !observer_;
  const bool stop_here = last_rows_only && wanted == 0;
  if (altup != nullptr) predict_streams(step, *altup, weights.altup, batch.num_tokens());
  if (hyper != nullptr) enter_block(step, *hyper, weights.hyper.attention);
  float* const inputs = spec_.per_layer_inputs ? work_.per_layer.data() + static_cast<int64_t>(i) * batch.num_tokens() *
                                                                              spec_.per_layer_inputs->size
                                               : nullptr;
  attend(step, layer, weights, batch, cache, !stop_here);
  if (stop_here) return false;
  if (last_rows_only) {
    keep_op_rows(work_.wanted, work_.x.data(), spec_.hidden_size);
    keep_streams(work_.wanted, batch.num_tokens());
    if (routes_by_token(spec_)) keep_rows(work_.wanted, work_.token_ids.data(), 1);
    if (layer.parallel || layer.laurel_rank > 0) keep_op_rows(work_.wanted, work_.normed.data(), spec_.hidden_size);
    keep_op_rows(work_.wanted, work_.attention.data(), attention_width(layer.attention));
    keep_rows(work_.wanted, work_.mixed.data(), mixed_width(layer.attention));
    if (inputs != nullptr) keep_rows(work_.wanted, inputs, spec_.per_layer_inputs->size);
    step.num_rows = wanted;
    work_.adapters = adapter_rows(batch, &work_.wanted);
    step.adapters = work_.adapters;
    if (layer.cross) work_.memory = memory_rows(batch, &work_.wanted);
  }
  // Parallel blocks read the stream before attention is added to it; without a norm of its own the feed-forward
  // block shares attention's, which is still in work_.normed.
  const float* input = work_.normed.data();
  if (layer.parallel && layer.feed_forward_norm) input = block_input(step, weights.feed_forward_norm, {});
  // Blocks add their output to work.x: to nothing where streams take it.
  const auto clear = [&] { std::fill_n(work_.x.data(), step.num_rows * spec_.hidden_size, 0.0f); };
  if (hyper != nullptr) clear();
  project_attention(step, layer, weights);
  if (hyper != nullptr) {
    leave_block(step, *hyper);
    enter_block(step, *hyper, weights.hyper.feed_forward);
  }
  if (layer.laurel_rank > 0) add_laurel(step, weights.laurel, layer.laurel_rank);
  normalize_stream(step, weights.attention_stream_norm);
  if (layer.cross) cross_attend(step, *layer.cross, weights.cross, memory_parts_[i]);
  const bool has_feed_forward = !std::holds_alternative<NoFeedForward>(layer.feed_forward);
  if (!layer.parallel && has_feed_forward) {
    input = block_input(step, weights.feed_forward_norm, layer.feed_forward_residual);
  }
  if (hyper != nullptr) clear();
  const float scale = layer.feed_forward_residual.scale;
  if (const auto* moe = std::get_if<MixtureOfExperts>(&layer.feed_forward)) {
    feed_forward(step, *moe, std::get<MoeWeights>(weights.feed_forward), input, weights.post_feed_forward_norm, scale);
  } else if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    feed_forward(step, *dense, std::get<DenseWeights>(weights.feed_forward), input, weights.post_feed_forward_norm,
                 scale);
  } else if (const auto* both = std::get_if<DenseBesideExperts>(&layer.feed_forward)) {
    feed_forward(step, *both, std::get<DenseBesideExpertsWeights>(weights.feed_forward), input,
                 weights.post_feed_forward_norm, scale);
  }
  normalize_stream(step, weights.feed_forward_stream_norm);
  if (altup != nullptr) {
    correct_streams(step, *altup, weights, inputs, batch.num_tokens());
  } else if (hyper != nullptr) {
    leave_block(step, *hyper);
  } else {
    finish_layer(step, i, inputs);
  }
  if (static_cast<int32_t>(i) < spec_.deep_embeddings) add_deep_embeddings(step, batch, static_cast<int32_t>(i));
  observe(static_cast<int32_t>(i) + 1, step.num_rows);
  return true;
}

// Of the rows behind the final norm, those whose logits are wanted.
void ForwardPass::keep_logits_rows(StepContext& step, const Batch& batch, float* rows) const {
  std::vector<int32_t> kept;
  for (const int32_t row : batch.logits_rows) {
    kept.push_back(static_cast<int32_t>(std::ranges::lower_bound(work_.wanted, row) - work_.wanted.begin()));
  }
  keep_op_rows(kept, rows, spec_.hidden_size);
  step.num_rows = static_cast<int64_t>(kept.size());
}

Status ForwardPass::run(const Batch& batch, KvCache& cache, float* logits, float* hidden) {
  HEADRACE_RETURN_IF_ERROR(check(batch, cache));
  if (logits != nullptr && spec_.head.kind != HeadKind::kVocabulary) {
    return invalid_argument("logits", "{} has no output over the vocabulary", spec_.architecture);
  }
  if (batch.num_tokens() == 0) return {};
  const Status status = run_rows(batch, cache, logits, hidden);
  // Whatever became of the step, its ops' failures are not the next one's.
  const Status finished = backend_.finish();
  return status.ok() ? finished : status;
}

// The head's output, by way of the device's memory where there is one.
Status ForwardPass::write_logits(const StepContext& step, const float* rows, float* logits) {
  if (memory_ == nullptr) {
    apply_head(step, weights_, rows, logits);
    return {};
  }
  const int64_t count = step.num_rows * head_width(spec_);
  try {
    work_.logits.resize(static_cast<size_t>(count));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for logits of {} rows", step.num_rows);
  }
  apply_head(step, weights_, rows, work_.logits.data());
  read_floats(work_.logits.data(), count, logits);
  return {};
}

Status ForwardPass::run_rows(const Batch& batch, KvCache& cache, float* logits, float* hidden) {
  HEADRACE_RETURN_IF_ERROR(grow(batch.num_tokens()));
  work_.adapters = adapter_rows(batch);
  HEADRACE_RETURN_IF_ERROR(grow_adapted(work_.adapters, batch.num_tokens()));
  if (!batch.memories.empty()) work_.memory = memory_rows(batch);
  choose_rows(batch);
  const auto num_wanted = static_cast<int64_t>(work_.wanted.size());

  StepContext step{spec_, backend_, work_, batch.num_tokens(), work_.adapters};
  embed_tokens(step, weights_, batch);
  if (spec_.per_layer_inputs) project_per_layer(step, *spec_.per_layer_inputs, weights_, batch);
  const auto* const altup = std::get_if<AltUp>(&spec_.streams);
  if (altup != nullptr) expand_streams(step, *altup, weights_, batch.num_tokens());
  const auto* const hyper = std::get_if<HyperConnections>(&spec_.streams);
  if (hyper != nullptr) expand_streams(step, *hyper);
  if (routes_by_token(spec_)) std::ranges::copy(batch.token_ids, work_.token_ids.begin());
  if (attends_both_ways(spec_)) {
    for (size_t seq = 0; seq + 1 < batch.query_start.size(); ++seq) {
      work_.sequence_ends[seq] = batch.query_start[seq + 1] - batch.query_start[seq];
    }
  }
  observe(0, batch.num_tokens());

  const std::vector<CachePart> parts = cache_parts(cache);
  int64_t state_offset = 0;
  Batch kept;
  const Batch* rows = &batch;
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    if (!batch.hidden_taps.empty()) {
      tap(batch, static_cast<int32_t>(i), work_.x.data(), step.num_rows < batch.num_tokens());
    }
    if (i == first_free_ && num_wanted < batch.num_tokens() && !observer_) {
      if (num_wanted == 0) return {};
      kept = drop_rows(step, batch);
      rows = &kept;
    }
    const LayerCache layer_cache{parts_of_layer(parts, i), state_offset};
    state_offset += static_cast<int64_t>(state_floats(spec_.layers[i]));
    if (!run_layer(step, i, *rows, layer_cache)) return {};
  }

  if (num_wanted == 0) return {};
  if (altup != nullptr) join_streams(step, *altup, weights_, rows->num_tokens());
  if (hyper != nullptr) join_streams(step, *hyper, *weights_.stream_head);
  if (step.num_rows != num_wanted) {
    keep_op_rows(work_.wanted, work_.x.data(), spec_.hidden_size);
    step.num_rows = num_wanted;
  }
  step.adapters = {};  // the head has none
  const bool more_than_logits = work_.wanted.size() != batch.logits_rows.size();
  const bool at_once = hidden != nullptr && !more_than_logits && memory_ == nullptr;
  float* const final_rows = at_once ? hidden : work_.normed.data();
  if (spec_.final_norm) {
    apply_norm(step, work_.x.data(), weights_.final_norm, final_rows);
  } else {
    copy_floats(step, work_.x.data(), num_wanted * spec_.hidden_size, final_rows);
  }
  tap(batch, static_cast<int32_t>(spec_.layers.size()), final_rows, true);
  if (more_than_logits) keep_logits_rows(step, batch, final_rows);
  if (step.num_rows == 0) return {};
  if (hidden != nullptr && !at_once) read_floats(final_rows, step.num_rows * spec_.hidden_size, hidden);
  return logits == nullptr ? Status() : write_logits(step, final_rows, logits);
}

Status ForwardPass::run_embedding(std::span<const int32_t> ids, float* out) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= spec_.vocab_size) return invalid_argument("token_ids", "{} is outside the vocabulary", id);
  }
  EmbedParams params;
  params.table = weights_.embedding.weight.get();
  params.token_ids = ids.data();
  params.num_tokens = static_cast<int64_t>(ids.size());
  params.scale = spec_.embedding_scale;
  params.out = out;
  if (!ids.empty()) backend_.embed(params);
  return backend_.finish();
}

Status ForwardPass::run_head(const float* rows, int64_t num_rows, float* out) {
  if (spec_.head.kind == HeadKind::kNone) return invalid_argument("head", "the model has none");
  HEADRACE_RETURN_IF_ERROR(grow(num_rows));
  if (num_rows > 0) apply_head({spec_, backend_, work_, num_rows, {}}, weights_, rows, out);
  return backend_.finish();
}

}  // namespace headrace
