#include "model/draft_head.h"

#include <algorithm>
#include <limits>

#include "formats/model_folder.h"
#include "model/blocks.h"
#include "model/rope_length.h"

namespace headrace {

void keep_layers_only(ModelSpec& spec) {
  spec.vocab_size = 0;
  spec.embedding_norm = false;
  spec.learned_positions = spec.token_types = 0;
  spec.final_norm = false;
  spec.head = HeadSpec{};
  spec.head.kind = HeadKind::kNone;
  spec.bos_token_id = -1;
  spec.eos_token_ids.clear();
}

Result<ModelFolder> open_head_folder(const std::string& folder) {
  HEADRACE_ASSIGN_OR_RETURN(ModelFolder files, open_model_folder(folder));
  if (files.weights == nullptr) return not_found(folder, "holds no safetensors");
  if (!files.config.is_object()) return not_found(folder, "holds no config.json with an object");
  return files;
}

int64_t longest_head_sequence(const ModelSpec& body) {
  return std::min(longest_sequence(body), longest_of_rope_length(body, 0));
}

void resize_layer_buffers(ForwardWorkspace& work, const ModelSpec& body, int64_t num_rows) {
  const auto& attention = std::get<GqaAttention>(body.layers[0].attention);
  const auto& feed_forward = std::get<DenseFeedForward>(body.layers[0].feed_forward);
  const auto rows = static_cast<size_t>(num_rows), hidden = static_cast<size_t>(body.hidden_size);
  const size_t heads = rows * static_cast<size_t>(attention.num_heads * attention.head_dim);
  const size_t inner = rows * static_cast<size_t>(feed_forward.intermediate_size);
  for (auto* buffer : {&work.x, &work.normed, &work.branch}) buffer->resize(rows * hidden);
  for (auto* buffer : {&work.q, &work.k, &work.v, &work.attention}) buffer->resize(heads);
  for (auto* buffer : {&work.gate, &work.up}) buffer->resize(inner);
}

void spread_logits(std::span<const float> own, std::span<const int32_t> token_ids, int64_t num_rows, int32_t vocab_size,
                   float* logits) {
  std::fill_n(logits, num_rows * vocab_size, -std::numeric_limits<float>::infinity());
  const float* value = own.data();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (const int32_t id : token_ids) logits[row * vocab_size + id] = *value++;
  }
}

void join_normed(const StepContext& step, const NormWeight& norm, const float* x, int64_t half, float* normed,
                 float* joined) {
  const int64_t hidden = step.spec.hidden_size;
  if (!norm.empty()) apply_norm(step, x, norm, normed);
  const float* const from = norm.empty() ? x : normed;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    std::copy_n(from + row * hidden, hidden, joined + (2 * row + half) * hidden);
  }
}

}  // namespace headrace
