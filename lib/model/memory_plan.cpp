#include "model/memory_plan.h"

#include <algorithm>

#include "model/forward.h"
#include "model/rope_length.h"

namespace headrace {

namespace {
constexpr int64_t kBlock = 16;
constexpr int64_t kStepRows = 512;
constexpr uint64_t kLogitsRows = 64;
constexpr uint64_t kMostBlocks = uint64_t{1} << 36;  // where a token takes no room
}  // namespace

int64_t MemoryPlanRow::max_batch(int64_t context) const {
  if (context <= 0) return 0;
  const int64_t blocks = (context + kBlock - 1) / kBlock;
  return cache_tokens / kBlock / blocks;
}

MemoryPlan plan_memory(const ModelSpec& spec, uint64_t weight_bytes, uint64_t memory_bytes) {
  MemoryPlan plan;
  plan.memory_bytes = memory_bytes;
  plan.weight_bytes = weight_bytes;
  plan.workspace_bytes = ForwardPass::workspace_bytes(spec, kStepRows) +
                         kLogitsRows * static_cast<uint64_t>(spec.vocab_size) * sizeof(float);
  plan.state_bytes = state_floats(spec) * sizeof(float);
  uint64_t left = memory_bytes;
  for (const uint64_t taken : {plan.weight_bytes, plan.workspace_bytes}) left = left > taken ? left - taken : 0;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    MemoryPlanRow row;
    row.dtype = dtype;
    row.bytes_per_token = kv_bytes_per_token(spec, dtype);
    const uint64_t held = left > plan.state_bytes ? left - plan.state_bytes : 0;  // one sequence's state at least
    const uint64_t blocks =
        row.bytes_per_token == 0 ? kMostBlocks * (held > 0 ? 1 : 0) : held / (row.bytes_per_token * kBlock);
    row.cache_tokens = static_cast<int64_t>(std::min<uint64_t>(blocks, uint64_t{1} << 40)) * kBlock;
    row.max_context = std::min(row.cache_tokens, longest_sequence(spec));
    plan.rows.push_back(row);
  }
  return plan;
}

}  // namespace headrace
