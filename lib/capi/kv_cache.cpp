#include "kv/kv_cache.h"

#include "capi/guard.h"
#include "capi/handles.h"

using namespace headrace;
using namespace headrace::capi;

namespace {

constexpr size_t kStatsSize1 = offsetof(headrace_kv_cache_stats, pool_bytes) + sizeof(uint64_t);

}  // namespace

extern "C" {

headrace_status headrace_kv_cache_create(const headrace_model* model, const headrace_options* options,
                                         headrace_kv_cache** kv_cache, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (kv_cache == nullptr) return null_argument("kv_cache");
    HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache,
                              engine::make_kv_cache(*model->loaded->engine, options_or_default(options)));
    *kv_cache = new headrace_kv_cache{model->loaded, std::move(cache)};
    return Status();
  });
}

void headrace_kv_cache_destroy(headrace_kv_cache* kv_cache) { delete kv_cache; }

void headrace_kv_cache_stats_init(headrace_kv_cache_stats* stats) { init_struct(stats); }

headrace_status headrace_kv_cache_get_stats(const headrace_kv_cache* kv_cache, headrace_kv_cache_stats* stats,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (kv_cache == nullptr) return null_argument("kv_cache");
    const KvCacheStats now = kv_cache->cache->stats();
    headrace_kv_cache_stats values = {};
    values.block_size = kv_cache->cache->block_size();
    values.num_blocks = now.num_blocks;
    values.free_blocks = now.free_blocks;
    values.cached_blocks = now.cached_blocks;
    values.lookup_tokens = now.lookup_tokens;
    values.hit_tokens = now.hit_tokens;
    values.pool_bytes = now.pool_bytes;
    return write_struct("stats", values, stats, kStatsSize1);
  });
}

headrace_status headrace_kv_cache_clear(headrace_kv_cache* kv_cache, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (kv_cache == nullptr) return null_argument("kv_cache");
    kv_cache->cache->clear_prefix_index();
    return Status();
  });
}

headrace_status headrace_kv_cache_flush(headrace_kv_cache* kv_cache, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (kv_cache == nullptr) return null_argument("kv_cache");
    kv_cache->cache->flush_disk();
    return Status();
  });
}

}  // extern "C"
