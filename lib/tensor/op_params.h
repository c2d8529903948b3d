// Parameters of the ops: raw pointers and named fields, seen by the model above and the kernels below. All floats are
// row-major; num_tokens is the number of rows of the ragged batch. No op keeps a pointer after it returns.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/kv_layout.h"

namespace headrace {

class PackedWeight;

enum class Activation : int32_t {
  kSilu,      // x * sigmoid(x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,   // 0.5 x (1 + erf(x / sqrt 2))
  kRelu,
  kRelu2,         // max(x, 0)^2
  kClampedSwish,  // x * sigmoid(1.702 x); with gate first cut to at most `limit`, up to [-limit, limit], and up + 1
                  // for up (gpt-oss)
  kSigmoid,
  kTanh,
  kGeluSigmoid,  // x * sigmoid(1.702 x)
  kClampedSilu,  // kSilu; with gate first cut to at most `limit` and up to [-limit, limit]
};

// out[t, :] = scale * table[token_ids[t], :]
struct EmbedParams {
  const PackedWeight* table = nullptr;  // [vocab_size, hidden_size]
  const int32_t* token_ids = nullptr;   // [num_tokens], each checked by the caller to lie in [0, vocab_size)
  int64_t num_tokens = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [num_tokens, hidden_size]
};

// out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. out may be x.
struct RmsNormParams {
  const float* x = nullptr;       // [num_tokens, size]
  const float* weight = nullptr;  // [size]
  int64_t num_tokens = 0;
  int64_t size = 0;
  float eps = 0.0f;
  float weight_offset = 0.0f;  // 1 where the checkpoint stores w - 1 (Gemma)
  float* out = nullptr;        // [num_tokens, size]
};

// out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, over each group of `size` values. A row is
// `groups` of them with a weight each. out may be x.
struct LayerNormParams {
  const float* x = nullptr;       // [num_tokens, groups, size]
  const float* weight = nullptr;  // [groups, size]
  const float* bias = nullptr;    // likewise, or null
  int64_t num_tokens = 0;
  int64_t size = 0;
  int64_t groups = 1;
  float eps = 0.0f;
  float* out = nullptr;
};

// One product of a linear op: y = x W^T + bias, or y += ... with accumulate.
struct LinearOutput {
  const PackedWeight* weight = nullptr;  // [out_features, in_features]
  const float* bias = nullptr;           // [out_features] or null
  float* y = nullptr;                    // [num_tokens, out_features] with row stride y_stride
  int64_t y_stride = 0;                  // floats between rows of y
  bool accumulate = false;               // add to y (the residual stream)
};

// Several products of the same rows; x is quantized once for all of them.
struct LinearParams {
  const float* x = nullptr;  // [num_tokens, in_features], contiguous
  int64_t num_tokens = 0;
  int64_t in_features = 0;
  std::span<const LinearOutput> outputs;
};

// out = activation(x Wg^T + bg) * (x Wu^T + bu): what a gated feed-forward multiplies down. Bit for bit that of a linear
// op and a gated activation after it.
struct GatedLinearParams {
  const float* x = nullptr;  // [num_tokens, in_features], contiguous
  int64_t num_tokens = 0;
  int64_t in_features = 0;
  const PackedWeight* gate = nullptr;  // [out_features, in_features]
  const float* gate_bias = nullptr;    // [out_features] or null
  const PackedWeight* up = nullptr;    // of the gate's shape
  const float* up_bias = nullptr;
  Activation activation = Activation::kSilu;
  float limit = 0.0f;    // kClampedSwish, kClampedSilu
  float* out = nullptr;  // [num_tokens, out_features], contiguous
};

// Per row: RMS-normalise each head of q and k where weights are given, rotate q and k by position, store k and v, or k
// alone where the layout has no place for values of their own; without k nothing is stored.
struct RopeStoreParams {
  float* q = nullptr;        // [num_tokens, num_heads, head_dim], rotated in place; null without heads
  float* k = nullptr;        // [num_tokens, num_kv_heads, head_dim], rotated in place, or null
  const float* v = nullptr;  // [num_tokens, num_kv_heads, head_dim], or null unless layout.content is kKeysAndValues
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0.0f;
  float norm_weight_offset = 0.0f;
  const int32_t* positions = nullptr;  // [num_tokens, num_axes]
  int32_t num_axes = 1;
  const int32_t* axes = nullptr;    // [rotary_dim / 2] which of a row's positions turns a pair; null: the first
  const float* inv_freq = nullptr;  // [rotary_dim / 2], radians per position; null: no rotation
  int32_t rotary_dim = 0;           // dims of a head that rotate
  int32_t rotary_begin = 0;         // the first of them
  bool backwards = false;           // by minus the angles
  bool norm_after_rotation = false;
  const float* q_scale = nullptr;  // [num_tokens] multiplies a row's q in the end, or null
  bool interleaved = false;        // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  float attention_factor = 1.0f;   // multiplies cos and sin (YaRN, long RoPE)
  KvLayout layout;                 // num_kv_heads, head_dim and block_size come from here
  std::byte* cache = nullptr;      // this layer's blocks [num_blocks][layout.block_bytes()]
  const int64_t* slots = nullptr;  // [num_tokens] block_id * block_size + offset
};

// Positions that each row sees in place of a range, of a cache part that holds rows (KvContent::kRows) of one head.
struct SelectedPositions {
  const int32_t* positions = nullptr;  // [num_tokens, max_count], ascending in a row
  const int32_t* counts = nullptr;     // [num_tokens], of each row at least 1
  int64_t max_count = 0;
};

// A second part of the cache, of rows of one head like the first's, that each row of the batch sees behind those of the
// first: where the last token of a run is at its position or before. Of them those listed, or all.
struct RunRows {
  KvLayout layout;                   // KvContent::kRows, with tokens_per_row
  const std::byte* cache = nullptr;  // null: there is none
  SelectedPositions selected;        // numbers of runs; of a row there may be none
};

// Attention of the batch's rows over the paged cache, keys and values of the rows already stored.
// Row t of a sequence at position p sees cached positions (p - window, p], in that sequence's block table; both ways
// (sequence_ends) it sees (p - window, p + window) of those before the sequence's end, all of them without a window. A row with a span sees on to
// the span's end, however far that is or, with span_alone, the span and nothing else.
// Softmax partial sums are merged at fixed logical positions, so that a row's result depends on its own keys alone.
struct PagedAttentionParams {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim]
  float* out = nullptr;      // [num_tokens, num_heads, head_dim]
  int32_t num_heads = 0;     // a multiple of layout.num_kv_heads; query head h reads KV head h / group
  int32_t num_seqs = 0;
  const int32_t* query_start = nullptr;          // [num_seqs + 1] rows of each sequence
  const int32_t* const* block_tables = nullptr;  // [num_seqs] block ids in logical order
  const int32_t* positions = nullptr;            // [num_tokens] index of the row in its sequence's cache
  KvLayout layout;
  const std::byte* cache = nullptr;  // this layer's blocks
  // [num_seqs] where sequences have blocks of their own, of this layout, in place of `cache`; null: they share it.
  const std::byte* const* sequence_caches = nullptr;
  float scale = 1.0f;
  // [num_heads, 2 * bias_reach + 1] added to scaled scores: from position p the key of position s gets the value at
  // clamp(s - p, -bias_reach, bias_reach) + bias_reach. Null: nothing is added. Not with `selected`.
  const float* position_bias = nullptr;
  int32_t bias_reach = 0;
  int32_t window = 0;                      // 0: unlimited
  int32_t chunk = 0;                       // c > 0: row p sees nothing before position p / c * c; not both ways
  float logit_softcap = 0.0f;              // c > 0: scores become c * tanh(score / c)
  const float* sinks = nullptr;            // [num_heads] extra logit in each softmax's denominator, or null
  const int32_t* sequence_ends = nullptr;  // [num_seqs] cached positions of each sequence; null: rows see none later
  // [num_tokens, 2] positions [begin, end) with the row's own among them, all cached; 0, 0: the row has none, and sees
  // what it would without. Neighbours have the same span or one that begins where the other ends. Null: no row has one.
  const int32_t* spans = nullptr;
  bool span_alone = false;
  // With positions: they alone are seen, and merged at fixed ranks among them; window, chunk, sequence_ends and the rows'
  // own positions do not count.
  SelectedPositions selected;
  // Of rows (KvContent::kRows), which see a window or positions selected, then these; merged at fixed ranks among both.
  RunRows runs;

  const std::byte* cache_of(int32_t sequence) const {
    return sequence_caches == nullptr ? cache : sequence_caches[sequence];
  }
};

// The positions that rows of sparse attention see, chosen by an indexer (DeepSeek-V3.2). Row t at position p gives cached
// position s <= p the score sum over h of weights[t, h] * max(0, q[t, h] . key[s]); it sees the top_k positions with the
// largest scores, of equal ones (NaN counts as the smallest) the lower, or all where there are no more. With tokens_per_row
// runs that end by p take the place of positions.
struct SelectPositionsParams {
  const float* q = nullptr;        // [num_tokens, num_heads, head_dim]
  const float* weights = nullptr;  // [num_tokens, num_heads]
  int32_t num_heads = 0;
  int32_t num_seqs = 0;
  const int32_t* query_start = nullptr;          // [num_seqs + 1] rows of each sequence
  const int32_t* const* block_tables = nullptr;  // [num_seqs] block ids in logical order
  const int32_t* positions = nullptr;            // [num_tokens] index of the row in its sequence's cache
  KvLayout layout;                               // of keys (KvContent::kKeys) or of rows (kRows) of one head
  const std::byte* cache = nullptr;
  int64_t top_k = 0;
  int32_t* selected = nullptr;  // [num_tokens, top_k], ascending in a row
  int32_t* counts = nullptr;    // [num_tokens] min(top_k, layout.rows_before(p))
};

// out = activation(gate) * up, or activation(gate) where up is null, elementwise; out may be gate.
struct GatedActivationParams {
  const float* gate = nullptr;  // [num_elements]
  const float* up = nullptr;
  int64_t num_elements = 0;
  Activation activation = Activation::kSilu;
  float* out = nullptr;
  float limit = 0.0f;  // kClampedSwish, kClampedSilu
};

// out += x, elementwise.
struct AddParams {
  const float* x = nullptr;
  float* out = nullptr;
  int64_t num_elements = 0;
};

// x *= factor, in place; with columns rows of num_columns, each value by its column's factor too.
struct ScaleParams {
  float* x = nullptr;
  int64_t num_elements = 0;
  float factor = 1.0f;
  const float* columns = nullptr;  // [num_columns] or null
  int64_t num_columns = 0;
};

// x = cap * tanh(x / cap), in place.
struct SoftcapParams {
  float* x = nullptr;
  int64_t num_elements = 0;
  float cap = 0.0f;
};

// What sampling needs of a row of logits. log_sum = log sum e^(logit - max), NaN for a row with a NaN or +inf, or
// without a finite value; max and argmax mean nothing then.
struct LogitStats {
  float max = 0.0f;
  int32_t argmax = 0;  // of equal logits the first
  float log_sum = 0.0f;
};

struct LogitStatsParams {
  const float* logits = nullptr;  // [num_rows, vocab_size]
  int64_t num_rows = 0;
  int64_t vocab_size = 0;
  LogitStats* out = nullptr;  // [num_rows]
};

}  // namespace headrace
