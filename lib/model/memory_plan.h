// What fits into a given amount of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"

namespace headrace {

struct MemoryPlanRow {
  KvDType dtype = KvDType::kF16;
  uint64_t bytes_per_token = 0;
  // Tokens of cache beside weights and workspace, in whole blocks of 16; 0 when the weights alone do not fit.
  int64_t cache_tokens = 0;
  // Longest context of one sequence: cache_tokens, at most max_position_embeddings.
  int64_t max_context = 0;

  // Sequences of `context` tokens each that fit at once.
  int64_t max_batch(int64_t context) const;
};

struct MemoryPlan {
  uint64_t memory_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t workspace_bytes = 0;     // steps of 512 rows, with logits of 64 of them
  uint64_t state_bytes = 0;         // recurrent state of one sequence; a snapshot takes as much
  std::vector<MemoryPlanRow> rows;  // one per KV dtype
};

MemoryPlan plan_memory(const ModelSpec& spec, uint64_t weight_bytes, uint64_t memory_bytes);

}  // namespace headrace
