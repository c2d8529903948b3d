#include "engine/executor.h"

#include <algorithm>
#include <chrono>

#include "engine/session.h"
#include "kv/block_tier.h"
#include "ops/reference_backend.h"

namespace headrace::engine {

std::string adapted_salt(const Adapter* adapter, std::string_view salt) {
  // A salt as it is, unless it could be taken for the other form.
  if (adapter == nullptr && !salt.starts_with('\0')) return std::string(salt);
  std::string out(1, '\0');
  if (adapter != nullptr) out += adapter->identity_text();
  out += '\0';
  out += salt;
  return out;
}

std::string input_salt(const Hash128& content, std::string_view salt) {
  return fmt::format("{:016x}{:016x}{}", content.high, content.low, salt);
}

void EngineModel::register_session(const std::shared_ptr<Session>& session) const {
  const std::lock_guard lock(sessions_mutex_);
  std::erase_if(sessions_, [](const std::weak_ptr<Session>& known) { return known.expired(); });
  sessions_.push_back(session);
}

// The list's lock is free afterwards: a session that dies with the last reference may take any lock it likes.
std::vector<std::shared_ptr<Session>> EngineModel::sessions_of(const KvCache& kv_cache) const {
  std::vector<std::shared_ptr<Session>> found;
  {
    const std::lock_guard lock(sessions_mutex_);
    found.reserve(sessions_.size());
    for (const std::weak_ptr<Session>& known : sessions_) found.push_back(known.lock());
  }
  std::erase_if(found, [&](const auto& session) { return !session || session->kv_cache().get() != &kv_cache; });
  return found;
}

int64_t EngineModel::pinned_blocks(const KvCache& kv_cache) const {
  std::vector<int32_t> blocks;
  for (const auto& session : sessions_of(kv_cache)) session->list_pinned(blocks);
  std::sort(blocks.begin(), blocks.end());
  return std::unique(blocks.begin(), blocks.end()) - blocks.begin();
}

bool EngineModel::shed_idle_session(const KvCache& kv_cache) const {
  std::vector<std::shared_ptr<Session>> candidates = sessions_of(kv_cache);
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a->last_used() < b->last_used(); });
  return std::any_of(candidates.begin(), candidates.end(), [](const auto& session) { return session->shed(); });
}

Result<std::shared_ptr<const Adapter>> StepExecutor::load_adapter(const std::string&) {
  return unsupported("adapter", "the model takes none");
}

Status StepExecutor::check_hidden_layers(std::span<const int32_t>) const {
  return unsupported("hidden_states", "the model gives none");
}

Result<std::string> StepExecutor::tune(const TuneRequest&, const std::function<bool(double)>&) {
  return unsupported("", "the executor has nothing to tune");
}

Status StepExecutor::run_hidden(const Batch&, KvCache&, float*) {
  return unsupported("", "the executor gives no hidden states");
}

Status StepExecutor::run_head(const float*, int64_t, float*) { return unsupported("", "the executor has no head"); }

void StepExecutor::logit_stats(const LogitStatsParams& params) { reference_logit_stats(params); }

int64_t StepExecutor::clock_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

// Null where the options name neither memory nor a folder.
Result<std::unique_ptr<kv::BlockTier>> open_block_tier(const EngineModel& model, const EngineOptions& options) {
  const bool has_folder = options.kv_disk_path != "off" && !options.kv_disk_path.empty();
  if (!has_folder && options.kv_host_bytes <= 0) return std::unique_ptr<kv::BlockTier>();
  if (!options.kv_prefix_index) {
    return invalid_argument(has_folder ? "kv.disk_path" : "kv.host_bytes",
                            "needs kv.prefix_index: blocks out of the pool are found by their prefix");
  }
  kv::BlockTierConfig config;
  config.host_bytes = static_cast<uint64_t>(std::max<int64_t>(options.kv_host_bytes, 0));
  config.clock_ns = [weak = std::weak_ptr(model.executor)] {
    const auto executor = weak.lock();
    return executor ? executor->clock_ns() : 0;
  };
  config.max_bytes = static_cast<uint64_t>(std::max<int64_t>(options.kv_disk_bytes, 1));
  config.codec = options.kv_disk_codec;
  config.log = options.log;
  const auto layouts = model.executor->kv_layouts(options.kv_dtype, options.kv_block_size);
  if (!layouts.empty()) config.element_bytes = layouts.front().element_bytes();
  if (!kv::has_codec(config.codec)) {
    return unsupported("kv.disk_codec", "this build has no {}", kv::codec_name(config.codec));
  }
  std::unique_ptr<kv::TierFiles> files;
  if (has_folder) {
    auto folder = kv::open_tier_folder(options.kv_disk_path);
    if (!folder.ok()) return folder.status().within("kv.disk_path");
    files = folder.take();
  }
  auto tier = kv::BlockTier::open(std::move(files), std::move(config));
  if (!tier.ok()) return tier.status().within(has_folder ? "kv.disk_path" : "kv.host_bytes");
  return tier.take();
}

Result<std::shared_ptr<KvCache>> make_cache(const EngineModel& model, const EngineOptions& options,
                                            std::unique_ptr<kv::BlockTier> tier) {
  constexpr int32_t kStatesAtRest = 16;  // of sessions, beside the running sequences
  if (options.kv_block_size < kKvTile || options.kv_block_size % kKvTile != 0) {
    return invalid_argument("kv.block_size", "{} is no multiple of {}", options.kv_block_size, kKvTile);
  }
  if (options.kv_max_tokens < 0) return invalid_argument("kv.max_tokens", "{} is negative", options.kv_max_tokens);
  const int64_t tokens = cache_tokens(model, options);
  KvCacheConfig config;
  config.layers = model.executor->kv_layouts(options.kv_dtype, options.kv_block_size);
  config.num_blocks = tokens / options.kv_block_size + (tokens % options.kv_block_size != 0 ? 1 : 0);
  config.memory = model.executor->memory();
  config.prefix_index = options.kv_prefix_index;
  config.zero_retention = options.zero_retention;
  config.state_floats = model.executor->state_floats();
  if (config.state_floats > 0) {
    config.num_states = options.kv_max_states > 0 ? options.kv_max_states : options.max_num_seqs + kStatesAtRest;
    config.max_snapshots = options.kv_max_snapshots;
    const int32_t blocks = options.kv_snapshot_interval / options.kv_block_size +
                           (options.kv_snapshot_interval % options.kv_block_size != 0 ? 1 : 0);
    config.snapshot_interval = blocks * options.kv_block_size;
  }
  config.identity = model.executor->kv_identity();
  auto cache = KvCache::create(std::move(config), std::move(tier));
  if (!cache.ok()) return cache.status().within("kv.max_tokens");
  if (model.memory == nullptr) return cache;
  // The share of the budget that the pool and copies of its blocks have lives as long as anybody holds the cache by what is
  // returned here.
  struct Held {
    std::shared_ptr<KvCache> cache;
    MemoryShare share;
  };
  auto held = std::make_shared<Held>(Held{cache.take(), MemoryShare(model.memory, "kv cache")});
  const KvCacheStats stats = held->cache->stats();
  HEADRACE_RETURN_IF_ERROR(held->share.resize(stats.pool_bytes + stats.host.max_bytes));
  KvCache* const pointer = held->cache.get();
  return std::shared_ptr<KvCache>(std::move(held), pointer);
}

}  // namespace

int64_t cache_tokens(const EngineModel& model, const EngineOptions& options) {
  constexpr int64_t kDefaultTokens = 4096;
  const int64_t tokens = options.kv_max_tokens > 0 ? options.kv_max_tokens
                                                   : std::min<int64_t>(kDefaultTokens, model.executor->max_context());
  // A prompt token and a drawn one at least: smaller caches could run nothing.
  return std::max<int64_t>(tokens, 2);
}

Result<std::shared_ptr<KvCache>> make_kv_cache(const EngineModel& model, const EngineOptions& options) {
  HEADRACE_RETURN_IF_ERROR(model.executor->check_generates());
  HEADRACE_ASSIGN_OR_RETURN(auto tier, open_block_tier(model, options));
  return make_cache(model, options, std::move(tier));
}

Result<std::shared_ptr<KvCache>> make_scratch_cache(const EngineModel& model, const EngineOptions& options) {
  return make_cache(model, options, nullptr);
}

Status check_kv_cache(const EngineModel& model, const KvCache& kv_cache) {
  const KvCacheConfig& config = kv_cache.config();
  if (config.identity != model.executor->kv_identity()) {
    return failed_precondition("kv_cache", "the cache was made for another model");
  }
  if (config.state_floats != model.executor->state_floats() ||
      config.layers != model.executor->kv_layouts(config.layers.front().dtype, kv_cache.block_size())) {
    return failed_precondition("kv_cache", "the cache's layers are not those of the model");
  }
  return Status();
}

int64_t context_limit(const EngineModel& model, const KvCache& kv_cache) {
  return std::min(model.executor->max_context(), kv_cache.config().num_blocks * kv_cache.block_size());
}

}  // namespace headrace::engine
