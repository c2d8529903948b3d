#include <algorithm>

#include "model/blocks.h"

namespace headrace {

namespace {

// work.x += the rows of the table that work.table_rows names.
void add_rows_of(const StepContext& step, const LinearWeight& table) {
  EmbedParams params;
  params.table = table.weight.get();
  params.token_ids = step.work.table_rows.data();
  params.num_tokens = step.num_rows;
  params.out = step.work.branch.data();
  step.backend.embed(params);
  step.backend.add({step.work.branch.data(), step.work.x.data(), step.num_rows * step.spec.hidden_size});
}

void fill_position_rows(const StepContext& step, const Batch& batch) {
  std::vector<int32_t>& rows = step.work.table_rows;
  std::copy(batch.positions.begin(), batch.positions.end(), rows.begin());
  const int32_t padding = step.spec.position_padding_id;
  if (padding < 0) return;
  for (size_t seq = 0; seq + 1 < batch.query_start.size(); ++seq) {
    int32_t next = padding + 1;
    for (auto row = static_cast<size_t>(batch.query_start[seq]); row < static_cast<size_t>(batch.query_start[seq + 1]);
         ++row) {
      rows[row] = batch.token_ids[row] == padding ? padding : next++;
    }
  }
}

// Ids for the table, of rows that have an embedding any.
const int32_t* ids_to_look_up(const StepContext& step, const Batch& batch) {
  if (batch.embedded_rows.empty()) return batch.token_ids.data();
  std::vector<int32_t>& ids = step.work.table_rows;
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), ids.begin());
  for (const int32_t row : batch.embedded_rows) ids[static_cast<size_t>(row)] = 0;
  return ids.data();
}

void embed_ids(const StepContext& step, const ModelWeights& weights, const Batch& batch) {
  EmbedParams params;
  params.table = weights.embedding.weight.get();
  params.token_ids = ids_to_look_up(step, batch);
  params.num_tokens = step.num_rows;
  params.scale = step.spec.embedding_scale;
  params.out = step.work.x.data();
  step.backend.embed(params);
}

void place_embeddings(const StepContext& step, const Batch& batch) {
  for (size_t i = 0; i < batch.embedded_rows.size(); ++i) {
    const int64_t size = step.spec.hidden_size;
    float* const to = step.work.x.data() + int64_t{batch.embedded_rows[i]} * size;
    if (const auto memory = step.backend.memory()) {
      memory->write(batch.embeddings[i], to, static_cast<size_t>(size) * sizeof(float));
    } else {
      std::copy_n(batch.embeddings[i], size, to);
    }
  }
}

}  // namespace

void copy_floats(const StepContext& step, const float* from, int64_t count, float* to) {
  if (const auto memory = step.backend.memory())
    return memory->copy(from, to, static_cast<size_t>(count) * sizeof(float));
  std::copy_n(from, count, to);
}

void embed_tokens(const StepContext& step, const ModelWeights& weights, const Batch& batch) {
  if (step.spec.vocab_size > 0) embed_ids(step, weights, batch);
  place_embeddings(step, batch);
  if (weights.positions) {
    fill_position_rows(step, batch);
    add_rows_of(step, *weights.positions);
  }
  if (weights.token_types) {
    std::fill(step.work.table_rows.begin(), step.work.table_rows.end(), 0);
    std::copy(batch.token_types.begin(), batch.token_types.end(), step.work.table_rows.begin());
    add_rows_of(step, *weights.token_types);
  }
  normalize_stream(step, weights.embedding_norm);
}

void add_deep_embeddings(const StepContext& step, const Batch& batch, int32_t layer) {
  const int64_t size = step.spec.hidden_size;
  for (size_t i = 0; i < batch.embedded_rows.size(); ++i) {
    step.backend.add({batch.embeddings[i] + (int64_t{layer} + 1) * size,
                      step.work.x.data() + int64_t{batch.embedded_rows[i]} * size, size});
  }
}

void normalize_stream(const StepContext& step, const NormWeight& norm) {
  if (!norm.empty()) apply_norm(step, step.work.x.data(), norm, step.work.x.data());
}

}  // namespace headrace
