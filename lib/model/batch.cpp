#include "model/batch.h"

namespace headrace {

void Batch::add_sequence(KvCache& cache, KvSequence& sequence, std::span<const int32_t> tokens, int64_t end,
                         int64_t first_logits, const Adapter* adapter, std::span<const int32_t> guesses,
                         float* row_states) {
  if (query_start.empty()) query_start.push_back(0);
  const int64_t begin = sequence.num_tokens(), first_row = num_tokens();
  for (int64_t position = begin; position < end; ++position) {
    if (position >= first_logits) logits_rows.push_back(static_cast<int32_t>(num_tokens()));
    const auto at = static_cast<size_t>(position);
    token_ids.push_back(at < tokens.size() ? tokens[at] : guesses[at - tokens.size()]);
    positions.push_back(static_cast<int32_t>(position));
    slots.push_back(cache.slot(sequence, position));
  }
  query_start.push_back(static_cast<int32_t>(num_tokens()));
  block_tables.push_back(sequence.block_ids().data());
  if (adapter != nullptr || !adapters.empty()) {
    adapters.resize(block_tables.size());
    adapters.back() = adapter;
  }
  if (sequence.rope_length() != 0 || !rope_lengths.empty()) {
    rope_lengths.resize(block_tables.size());
    rope_lengths.back() = sequence.rope_length();
  }
  if (cache.config().state_floats == 0) return;
  std::vector<KvStateSnapshot> wanted;
  states.push_back(cache.open_state(sequence, end, wanted, row_states));
  for (const KvStateSnapshot& snapshot : wanted) {
    snapshot_rows.push_back(static_cast<int32_t>(first_row + snapshot.position - 1 - begin));
    snapshots.push_back(snapshot.state);
  }
}

void Batch::embed_rows(const float* rows, int64_t hidden_size) {
  embedded_rows.resize(token_ids.size());
  embeddings.resize(token_ids.size());
  for (size_t row = 0; row < token_ids.size(); ++row) {
    embedded_rows[row] = static_cast<int32_t>(row);
    embeddings[row] = rows + static_cast<int64_t>(row) * hidden_size;
  }
}

}  // namespace headrace
