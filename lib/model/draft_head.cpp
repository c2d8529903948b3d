#include "model/draft_head.h"

#include <algorithm>

#include "model/blocks.h"

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
