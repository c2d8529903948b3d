#include "model/embedded_pass.h"

#include <utility>

namespace headrace {

Result<RowsCache> cache_of_rows(std::vector<KvLayout> layouts, int64_t num_rows) {
  KvCacheConfig config;
  config.num_blocks = (num_rows + layouts[0].block_size - 1) / layouts[0].block_size;
  config.layers = std::move(layouts);
  config.prefix_index = false;
  RowsCache out;
  HEADRACE_ASSIGN_OR_RETURN(out.cache, KvCache::create(std::move(config)));
  out.rows = out.cache->new_sequence();
  HEADRACE_RETURN_IF_ERROR(out.cache->reserve(out.rows, num_rows));
  return out;
}

Status run_embedded(ForwardPass& forward, const ModelSpec& spec, const std::vector<float>& rows, Batch& batch,
                    std::vector<float>& out) {
  const int64_t num_rows = static_cast<int64_t>(rows.size()) / spec.hidden_size;
  HEADRACE_ASSIGN_OR_RETURN(RowsCache stored, cache_of_rows(kv_layouts(spec, KvDType::kF32), num_rows));
  const std::vector<int32_t> ids(static_cast<size_t>(num_rows), 0);
  batch.add_sequence(*stored.cache, stored.rows, ids, num_rows, /*first_logits=*/0);
  batch.embed_rows(rows.data(), spec.hidden_size);
  out.resize(rows.size());
  return forward.run(batch, *stored.cache, nullptr, out.data());
}

}  // namespace headrace
