// The forward pass: executes a ModelSpec with a backend's ops. One call is one ragged step; prefill, decode
// and scoring are the same.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/adapter.h"
#include "model/batch.h"
#include "model/model_spec.h"
#include "model/op_floats.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace headrace {

// The rows of a step by sequence and what they see of encoders.
struct MemoryRows {
  std::vector<int32_t> query_start;  // [num_seqs + 1]
  std::vector<int32_t> ends;         // [num_seqs] rows of each memory
  std::vector<int32_t> positions;    // [num_rows] rising
  std::vector<const int32_t*> block_tables;
  std::vector<const EncoderMemory*> memories;
};

// Buffers of one step, kept between steps. All [rows, ...] row-major.
struct ForwardWorkspace {
  OpFloats x;                          // [rows, hidden_size] residual stream
  OpFloats normed;                     // [rows, hidden_size]
  OpFloats q, k, v;                    // [rows, heads * head_dim]
  OpFloats attention;                  // [rows, num_heads * head_dim]
  OpFloats gate, up;                   // [rows, intermediate_size]
  OpFloats branch;                     // [rows, hidden_size] output of a block before its post norm or scale
  OpFloats logits;                     // [wanted rows, vocab_size], of a backend with memory of its own
  std::vector<float> q_scale;          // [rows] factors by position, where a layer has them
  std::vector<float> inv_freq;         // [rotary_dim / 2] of a rotation that depends on the length
  std::vector<int32_t> table_rows;     // [rows] of the table of positions or of segments
  std::vector<int32_t> sequence_ends;  // [sequences] positions of each, where rows see later ones
  // Of recurrent layers; sizes as model/mixer.h says.
  std::vector<float> mixer_in, conv, gate_in, step, decay, mixed;
  // Of latent attention: the queries' latents [rows, q_rank], and queries in the space of the keys.
  std::vector<float> q_latent, latent_q;
  // Of sparse attention: the indexer's queries, keys and weights of its heads, and the positions each row sees.
  std::vector<float> index_q, index_k, index_weights;
  std::vector<int32_t> selected, num_selected;  // [rows, top_k], [rows]
  std::vector<float> second;                    // [rows, hidden_size] of experts beside a feed-forward
  std::vector<float> streams, predicted;        // [streams, rows, hidden_size] of AltUp, of others [rows, streams, ...]
  std::vector<float> coefficients, modalities;  // [rows, streams^2], [rows, streams]
  std::vector<float> stream_gates, stream_sums;  // [rows, streams (streams + 2)], [rows, streams] of HyperConnections
  // Of compressed attention: what runs are pooled of, which of them end here, and their rows.
  std::vector<float> run_values, run_gates, run_rows;
  std::vector<int32_t> run_entries, run_positions;  // [rows], [runs]
  std::vector<int64_t> run_slots;                   // [runs]
  std::vector<float> laurel;                        // [rows, laurel_rank]
  std::vector<float> per_layer, per_layer_rows;     // inputs of all layers, layer by layer and row by row
  std::vector<AdapterRows> adapters;                // of the rows that go on
  MemoryRows memory;                                // likewise; empty without cross-attention
  std::vector<float> adapted;                       // [rows, rank] between the two products of an adapter
  std::vector<float> visits;       // [rows, hidden_size + top_k hidden_size + 2 intermediate_size] of adapted experts
  std::vector<float> router;       // [rows, num_experts] logits, then a row's gate of the shared feed-forward
  std::vector<int32_t> token_ids;  // [rows], where experts are chosen by token
  std::vector<int32_t> wanted;     // rows that go on past the last layer that stores anything, rising
  std::vector<int32_t> experts, given;  // [rows, top_k]
  std::vector<float> expert_weights;
};

struct LayerCache;
struct StepContext;
struct CachePart;

// Thread rule: one run at a time. Keeps references to spec, weights and backend, which must outlive it and
// stay.
class ForwardPass {
 public:
  ForwardPass(const ModelSpec& spec, const ModelWeights& weights, Backend& backend);

  // Stores keys and values of every row in `cache` (layouts as kv_layouts() gives) and computes, for the rows
  // in batch.logits_rows in that order:
  //   logits [logits_rows.size(), vocab_size], when not null; of heads of kind kVocabulary
  //   hidden [logits_rows.size(), hidden_size], when not null: the head's input, after the final norm
  // and what batch.hidden_taps ask for. A row's bits do not depend on which others are wanted.
  // The batch is checked first (ids, positions, slots and row numbers in range, consistent lengths, whole sequences
  // where rows see later ones): kInvalidArgument names the field and nothing was stored. kOutOfMemory when the
  // workspace cannot grow, likewise.
  Status run(const Batch& batch, KvCache& cache, float* logits, float* hidden = nullptr);

  // The head alone: out [num_rows, head_width(spec)] of rows [num_rows, hidden_size], which are run's `hidden` or, for
  // heads of sequences, what they are pooled to. kOutOfMemory as above.
  Status run_head(const float* rows, int64_t num_rows, float* out);

  // The embedding alone: out [ids.size(), hidden_size] of tokens, as they come from the table and its scale. kInvalidArgument
  // for ids outside the vocabulary.
  Status run_embedding(std::span<const int32_t> ids, float* out);

  // Bytes the workspace needs for steps of num_rows rows.
  static uint64_t workspace_bytes(const ModelSpec& spec, int64_t num_rows);

  // For tests and feature export: sees the residual stream [num_tokens, hidden_size] after the embedding
  // (layer 0) and after layer i - 1 (layer i), before the final norm. While set, the last layer computes
  // every row.
  using LayerObserver = std::function<void(int32_t layer, const float* x, int64_t num_tokens)>;
  void set_layer_observer(LayerObserver observer) { observer_ = std::move(observer); }

 private:
  Status check(const Batch& batch, const KvCache& cache) const;
  Status check_adapters(const Batch& batch) const;
  Status check_rope_lengths(const Batch& batch) const;
  Status check_states(const Batch& batch) const;
  Status check_images(const Batch& batch) const;
  Status check_memories(const Batch& batch, const KvLayout& layout) const;
  Status check_whole_sequences(const Batch& batch) const;
  Status check_taps(const Batch& batch) const;
  Status grow(int64_t num_rows);
  void choose_rows(const Batch& batch);
  void keep_logits_rows(StepContext& step, const Batch& batch, float* rows) const;
  void tap(const Batch& batch, int32_t layer, const float* rows, bool dropped) const;
  Batch drop_rows(StepContext& step, const Batch& batch);
  bool run_layer(StepContext& step, size_t i, const Batch& batch, const LayerCache& cache);
  void finish_layer(const StepContext& step, size_t layer, const float* inputs);
  void read_floats(const float* from, int64_t count, float* to) const;
  void observe(int32_t layer, int64_t num_rows);
  Status run_rows(const Batch& batch, KvCache& cache, float* logits, float* hidden);
  Status write_logits(const StepContext& step, const float* rows, float* logits);
  std::span<const CachePart> parts_of_layer(std::span<const CachePart> parts, size_t layer) const;
  Status grow_adapted(const std::vector<AdapterRows>& adapters, int64_t num_rows);
  template <class T>
  void keep_rows(const std::vector<int32_t>& rows, T* values, int64_t width) const;
  void keep_op_rows(const std::vector<int32_t>& rows, float* values, int64_t width) const;
  void keep_streams(const std::vector<int32_t>& rows, int64_t stream_rows);

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  Backend& backend_;
  const std::shared_ptr<DeviceMemory> memory_;  // of the backend; null: the program's
  ForwardWorkspace work_;
  int64_t capacity_ = 0;
  std::vector<size_t> part_starts_;    // of each layer's parts of the cache, and of those behind the last
  std::vector<int32_t> memory_parts_;  // of each layer with cross-attention, the part of an encoder's memory
  bool rotates_by_length_ = false;     // some layer rotates sequences by their length (rope_length.h)
  size_t first_free_ = 0;              // it and all layers behind it store nothing, and want nothing of the batch
  LayerObserver observer_;
};

}  // namespace headrace
