// One ragged step: rows of several sequences through the layers. Decode, chunked prefill and scoring are the
// same call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/hidden_tap.h"

namespace headrace {

class Adapter;
struct EncoderMemory;

struct Batch {
  std::vector<int32_t> token_ids;            // [num_tokens]
  std::vector<int32_t> positions;            // [num_tokens] index in the row's sequence
  std::vector<int32_t> query_start;          // [num_seqs + 1] rows of each sequence, first 0, last num_tokens
  std::vector<const int32_t*> block_tables;  // [num_seqs] ids of the sequence's blocks, enough for its last position
  std::vector<int64_t> slots;          // [num_tokens] block_id * block_size + offset where the row's key and value go
  std::vector<int32_t> logits_rows;    // rows whose logits are wanted, ascending
  std::vector<int32_t> token_types;    // [num_tokens] segment of each token where the model has segments; empty: all 0
  std::vector<HiddenTap> hidden_taps;  // may overlap

  // Rows whose embedding is given, ascending, and theirs: [hidden_size] floats in place of the token's, then as many for
  // each of the spec's deep_embeddings. Their ids count for nothing.
  std::vector<int32_t> embedded_rows;
  std::vector<const float*> embeddings;
  // [num_tokens, position_axes] what rows rotate by where that is not their position; empty: `positions`, on every axis.
  std::vector<int32_t> rope_positions;
  std::vector<int32_t> spans;            // as PagedAttentionParams::spans; empty: none
  std::vector<const Adapter*> adapters;  // [num_seqs], null where a sequence has none; empty: no sequence has one
  std::vector<int64_t> rope_lengths;     // [num_seqs] KvSequence::rope_length of each; empty: all 0

  std::vector<const EncoderMemory*> memories;  // [num_seqs] of a model with cross-attention, else empty

  // Of a model with recurrent state:
  std::vector<float*> states;          // [num_seqs] before the sequence's first row; the step leaves it after the last
  std::vector<int32_t> snapshot_rows;  // rising; the state after this row of its sequence is also wanted
  std::vector<float*> snapshots;       // where, likewise

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(block_tables.size()); }
  void clear() { *this = Batch(); }

  // Appends positions [sequence.num_tokens(), end) of a reserved sequence, whose tokens so far are `tokens`; logits are
  // wanted from position first_logits on. The sequence, and the adapter, must stay where they are until the step was run.
  // `guesses` are the tokens behind `tokens`; row_states as in KvCache::open_state.
  void add_sequence(KvCache& cache, KvSequence& sequence, std::span<const int32_t> tokens, int64_t end,
                    int64_t first_logits, const Adapter* adapter = nullptr, std::span<const int32_t> guesses = {},
                    float* row_states = nullptr);
  // Embeds all rows as these [num_tokens, hidden_size], whatever their tokens are.
  void embed_rows(const float* rows, int64_t hidden_size);
};

}  // namespace headrace
