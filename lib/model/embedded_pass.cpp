#include "model/embedded_pass.h"

#include "kv/kv_cache.h"

namespace headrace {

Status run_embedded(ForwardPass& forward, const ModelSpec& spec, const std::vector<float>& rows, Batch& batch,
                    std::vector<float>& out) {
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  const auto num_rows = static_cast<int32_t>(rows.size() / hidden);
  KvCacheConfig config;
  config.layers = kv_layouts(spec, KvDType::kF32);
  config.num_blocks = (num_rows + config.layers[0].block_size - 1) / config.layers[0].block_size;
  config.prefix_index = false;
  HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  KvSequence sequence = cache->new_sequence();
  HEADRACE_RETURN_IF_ERROR(cache->reserve(sequence, num_rows));
  const std::vector<int32_t> ids(static_cast<size_t>(num_rows), 0);
  batch.add_sequence(*cache, sequence, ids, num_rows, /*first_logits=*/0);
  for (int32_t row = 0; row < num_rows; ++row) {
    batch.embedded_rows.push_back(row);
    batch.embeddings.push_back(rows.data() + static_cast<size_t>(row) * hidden);
  }
  out.resize(rows.size());
  return forward.run(batch, *cache, nullptr, out.data());
}

}  // namespace headrace
