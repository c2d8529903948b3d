// Of drafters that are heads of the model with a KV cache of their own.
#pragma once

#include <cstdint>
#include <memory>

#include "base/memory_budget.h"
#include "base/turn_queue.h"
#include "tensor/kv_layout.h"

namespace headrace::speculation {

struct HeadDrafterOptions {
  int64_t max_tokens = 4096;  // that the drafter's own cache holds over all sequences
  int64_t max_rows = 512;     // of one pass; of one of blocks, one block at least
  KvDType kv_dtype = KvDType::kF16;
  int32_t block_size = 16;
  float least_survival = 0.1f;  // as GuessChain
  // Whose turns the model's backend is shared by; null: the drafter has it alone.
  std::shared_ptr<TurnQueue> turns = nullptr;
  int32_t priority = 0;
  // Of the head's weights, the cache and the workspace; null: none.
  std::shared_ptr<MemoryBudget> memory = nullptr;
};

}  // namespace headrace::speculation
