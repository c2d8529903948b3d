#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "model/blocks.h"

namespace headrace {

namespace {

// Floats per row of each buffer of the workspace.
struct Widths {
  int64_t hidden = 0, q = 0, kv = 0, intermediate = 0;

  explicit Widths(const ModelSpec& spec) : hidden(spec.hidden_size) {
    for (const LayerSpec& layer : spec.layers) {
      const auto& attention = std::get<GqaAttention>(layer.attention);
      q = std::max(q, int64_t{attention.num_heads} * attention.head_dim);
      kv = std::max(kv, int64_t{attention.num_kv_heads} * attention.head_dim);
      intermediate = std::max<int64_t>(intermediate, std::get<DenseFeedForward>(layer.feed_forward).intermediate_size);
    }
  }
  int64_t total() const { return 3 * hidden + 2 * q + 2 * kv + 2 * intermediate; }
};

bool has_post_norms(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& layer) { return layer.post_attention_norm || layer.post_feed_forward_norm; });
}

}  // namespace

ForwardPass::ForwardPass(const ModelSpec& spec, const ModelWeights& weights, Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend) {}

uint64_t ForwardPass::workspace_bytes(const ModelSpec& spec, int64_t num_rows) {
  return static_cast<uint64_t>(Widths(spec).total()) * static_cast<uint64_t>(num_rows) * sizeof(float);
}

Status ForwardPass::grow(int64_t num_rows) {
  if (num_rows <= capacity_) return {};
  const Widths widths(spec_);
  const auto rows = static_cast<size_t>(num_rows);
  try {
    work_.x.resize(rows * static_cast<size_t>(widths.hidden));
    work_.normed.resize(rows * static_cast<size_t>(widths.hidden));
    if (has_post_norms(spec_)) work_.branch.resize(rows * static_cast<size_t>(widths.hidden));
    work_.q.resize(rows * static_cast<size_t>(widths.q));
    work_.attention.resize(rows * static_cast<size_t>(widths.q));
    work_.k.resize(rows * static_cast<size_t>(widths.kv));
    work_.v.resize(rows * static_cast<size_t>(widths.kv));
    work_.gate.resize(rows * static_cast<size_t>(widths.intermediate));
    work_.up.resize(rows * static_cast<size_t>(widths.intermediate));
  } catch (const std::bad_alloc&) {
    return out_of_memory("workspace", "not enough memory for a step of {} rows", num_rows);
  }
  capacity_ = num_rows;
  return {};
}

Status ForwardPass::check(const Batch& batch, const KvCache& cache) const {
  const int64_t rows = batch.num_tokens();
  const auto& layouts = cache.config().layers;
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
  for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= spec_.vocab_size) {
      return invalid_argument("token_ids", "row {}: id {} is outside the vocabulary of {}", i, batch.token_ids[i],
                              spec_.vocab_size);
    }
    if (batch.positions[i] < 0) return invalid_argument("positions", "row {}: {} is negative", i, batch.positions[i]);
    if (batch.slots[i] < 0 || batch.slots[i] >= num_slots) {
      return invalid_argument("slots", "row {}: {} is outside the cache of {} slots", i, batch.slots[i], num_slots);
    }
  }
  int64_t last = -1;
  for (const int32_t row : batch.logits_rows) {
    if (row <= last || row >= rows) return invalid_argument("logits_rows", "row {} is out of order or range", row);
    last = row;
  }
  return {};
}

// Moves the listed (ascending) rows to the front.
void ForwardPass::keep_rows(const std::vector<int32_t>& rows, std::vector<float>& values, int64_t width) const {
  const auto row_floats = static_cast<size_t>(width);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = static_cast<size_t>(rows[i]);
    if (from != i) std::memcpy(&values[i * row_floats], &values[from * row_floats], row_floats * sizeof(float));
  }
}

Status ForwardPass::run(const Batch& batch, KvCache& cache, float* logits, float* hidden) {
  HEADRACE_RETURN_IF_ERROR(check(batch, cache));
  if (batch.num_tokens() == 0) return {};
  HEADRACE_RETURN_IF_ERROR(grow(batch.num_tokens()));
  const auto num_wanted = static_cast<int64_t>(batch.logits_rows.size());

  EmbedParams embed;
  embed.table = weights_.embedding.weight.get();
  embed.token_ids = batch.token_ids.data();
  embed.num_tokens = batch.num_tokens();
  embed.scale = spec_.embedding_scale;
  embed.out = work_.x.data();
  backend_.embed(embed);
  if (observer_) observer_(0, work_.x.data(), batch.num_tokens());

  StepContext step{spec_, backend_, work_, batch.num_tokens()};
  const std::vector<KvLayout>& layouts = cache.config().layers;
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    const LayerWeights& weights = weights_.layers[i];
    const auto& attention = std::get<GqaAttention>(layer.attention);
    const auto& attention_weights = std::get<GqaWeights>(weights.attention);
    // Past the last layer's attention only rows whose logits are wanted matter; rows are independent, so
    // leaving the others out changes no bit of them.
    const bool drop_rows = i + 1 == spec_.layers.size() && num_wanted < batch.num_tokens() && !observer_;
    const bool stop_here = drop_rows && num_wanted == 0;
    attend(step, attention, attention_weights, weights.attention_norm, batch, layouts[i],
           cache.layer_data(static_cast<int32_t>(i)), !stop_here);
    if (stop_here) return {};
    if (drop_rows) {
      keep_rows(batch.logits_rows, work_.x, spec_.hidden_size);
      keep_rows(batch.logits_rows, work_.attention, int64_t{attention.num_heads} * attention.head_dim);
      step.num_rows = num_wanted;
    }
    project_attention(step, attention, attention_weights, weights.post_attention_norm);
    feed_forward(step, std::get<DenseFeedForward>(layer.feed_forward), std::get<DenseWeights>(weights.feed_forward),
                 weights.feed_forward_norm, weights.post_feed_forward_norm);
    if (observer_) observer_(static_cast<int32_t>(i) + 1, work_.x.data(), step.num_rows);
  }

  if (num_wanted == 0) return {};
  if (step.num_rows != num_wanted) {
    keep_rows(batch.logits_rows, work_.x, spec_.hidden_size);
    step.num_rows = num_wanted;
  }
  float* const final_rows = hidden != nullptr ? hidden : work_.normed.data();
  apply_norm(step, work_.x.data(), weights_.final_norm, final_rows);
  if (logits == nullptr) return {};
  const LinearOutput outputs[] = {weights_.head().to(logits)};
  LinearParams head;
  head.x = final_rows;
  head.num_tokens = num_wanted;
  head.in_features = spec_.hidden_size;
  head.outputs = outputs;
  backend_.linear(head);
  if (spec_.head.logit_softcap > 0) {
    SoftcapParams softcap;
    softcap.x = logits;
    softcap.num_elements = num_wanted * spec_.vocab_size;
    softcap.cap = spec_.head.logit_softcap;
    backend_.softcap(softcap);
  }
  return {};
}

}  // namespace headrace
