// One sequence of given rows through a model of its own: what the encoders for images and in front of decoders do.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/model_spec.h"

namespace headrace {

// A cache for num_rows rows alone, of which one sequence has them all.
struct RowsCache {
  std::shared_ptr<KvCache> cache;
  KvSequence rows;
};
Result<RowsCache> cache_of_rows(std::vector<KvLayout> layouts, int64_t num_rows);

// rows [n, hidden_size] -> out [n, hidden_size], behind the last norm. batch: empty but for rotary positions and spans. Keys
// and values live for the call, in float32.
Status run_embedded(ForwardPass& forward, const ModelSpec& spec, const std::vector<float>& rows, Batch& batch,
                    std::vector<float>& out);

}  // namespace headrace
