// Blocks of a KvCache on their way to the tiers beyond its pool and back.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "kv/kv_cache_impl.h"
#include "kv/kv_file.h"

namespace headrace {
namespace {

// Another hash than the prefix index's: a file is of the right tokens where both agree.
constexpr uint64_t kKeySeed = 0x6b762d6469736b21;
constexpr Hash128 kNoKey = {};

// All that decides what a file's bytes mean, beside salt and tokens.
Hash128 tag_of(const KvCacheConfig& config) {
  std::vector<uint64_t> parts = {kv::kTierVersion, kKvLayoutVersion, config.identity.low, config.identity.high,
                                 config.state_floats};
  for (const KvLayout& layout : config.layers) {
    for (const int32_t part : {static_cast<int32_t>(layout.dtype), layout.num_kv_heads, layout.head_dim,
                               layout.block_size, static_cast<int32_t>(layout.content), layout.tokens_per_row}) {
      parts.push_back(static_cast<uint64_t>(part));
    }
  }
  return hash128(parts.data(), parts.size() * sizeof(uint64_t));
}

}  // namespace

// ---- keys ----

Hash128 KvCache::Impl::tier_root(const std::string& salt) { return hash128(salt.data(), salt.size(), kKeySeed); }

Hash128 KvCache::Impl::tier_key(const Hash128& before, std::span<const int32_t> tokens) {
  // A number of an image is another one in the next process.
  if (before == kNoKey || std::ranges::any_of(tokens, [](int32_t id) { return id < 0; })) return kNoKey;
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset_withSeed(&state, kKeySeed);
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  XXH3_128bits_update(&state, &before, sizeof(before));
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return {digest.low64, digest.high64};
}

Hash128 KvCache::Impl::tier_key_of(int32_t parent, const std::string& salt, std::span<const int32_t> tokens) const {
  return tier_key(parent < 0 ? tier_root(salt) : tier->keys[static_cast<size_t>(parent)], tokens);
}

kv::TierRecord KvCache::Impl::tier_record(kv::TierKind kind, const Hash128& key, const Hash128& chain,
                                          std::span<const int32_t> tokens) const {
  kv::TierRecord record;
  record.key = {tier->tag, key, kind};
  record.chain = chain;
  record.token_ids.assign(tokens.begin(), tokens.end());
  record.raw_bytes = kind == kv::TierKind::kBlock ? tier->block_bytes : states.state_bytes();
  return record;
}

// ---- out of the pool ----

void KvCache::Impl::open_tier(std::unique_ptr<kv::BlockTier> blocks) {
  tier = std::make_unique<Tier>();
  tier->tag = tag_of(config);
  for (const KvLayout& layout : config.layers) tier->block_bytes += layout.block_bytes();
  tier->keys.resize(static_cast<size_t>(pool.num_blocks()));
  tier->listed.resize(static_cast<size_t>(pool.num_blocks()));
  blocks->set_source([this] { return next_unwritten(); });
  tier->blocks = std::move(blocks);
}

// What there is to keep of a block's kind; nothing where it is kept or on its way. No memory is taken before that is known.
std::optional<kv::TierRecord> KvCache::Impl::unwritten(kv::TierKind kind, int32_t block) const {
  if (!index.contains(block)) return std::nullopt;
  const Hash128& key = tier->keys[static_cast<size_t>(block)];
  if (key == kNoKey || (kind == kv::TierKind::kState && states.snapshot(block) < 0)) return std::nullopt;
  if (!tier->blocks->lacks({tier->tag, key, kind})) return std::nullopt;
  return tier_record(kind, key, index.hash(block), index.tokens(block));
}

std::vector<std::byte> KvCache::Impl::copy_of(kv::TierKind kind, int32_t block) {
  if (kind == kv::TierKind::kState) {
    const std::byte* const data = states.data(states.snapshot(block));
    return {data, data + states.state_bytes()};
  }
  std::vector<std::byte> copy(tier->block_bytes);
  int64_t first_token = -1;  // not known yet
  size_t at = 0;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const KvLayout& layout = config.layers[layer];
    const size_t bytes = layout.block_bytes();
    if (bytes == 0) continue;  // a layer without attention
    pool.read_block(layer, block, copy.data() + at);
    // A row that ends in the next block was left here by others.
    if (layout.block_size % layout.tokens_per_row != 0) {
      if (first_token < 0) {
        first_token = 0;
        for (int32_t before = index.parent(block); before >= 0; before = index.parent(before))
          first_token += block_size;
      }
      const int32_t rows = kv::used_rows(layout, first_token, block_size);
      if (rows < layout.rows_per_block()) kv::zero_block_tail(layout, std::span(copy).subspan(at, bytes), rows);
    }
    at += bytes;
  }
  return copy;
}

void KvCache::Impl::stage(kv::TierKind kind, int32_t block) {
  try {
    auto record = unwritten(kind, block);
    if (record && tier->blocks->has_room(record->raw_bytes))
      tier->blocks->put({std::move(*record), copy_of(kind, block)});
  } catch (const std::bad_alloc&) {
    // It is lost, and computed again by whoever needs it.
  }
}

// Nobody holds the block: it is written when there is time, so that its eviction copies nothing and a later process finds it.
void KvCache::Impl::list_unwritten(int32_t block) {
  const auto at = static_cast<size_t>(block);
  if (tier->listed[at] || tier->keys[at] == kNoKey) return;
  try {
    tier->unwritten.push_back(block);
  } catch (const std::bad_alloc&) {
    return;  // it is copied when it is evicted
  }
  tier->listed[at] = true;
  tier->blocks->wake();
}

std::vector<kv::BlockCopy> KvCache::Impl::next_unwritten() {
  std::vector<kv::BlockCopy> items;
  const std::lock_guard lock(mutex);
  while (items.empty() && !tier->unwritten.empty()) {
    const int32_t block = tier->unwritten.front();
    tier->unwritten.pop_front();
    tier->listed[static_cast<size_t>(block)] = false;
    for (const kv::TierKind kind : {kv::TierKind::kBlock, kv::TierKind::kState}) {
      if (auto record = unwritten(kind, block)) items.push_back({std::move(*record), copy_of(kind, block)});
    }
  }
  return items;
}

void KvCache::flush_disk() {
  if (!impl_->tier) return;
  {
    const std::lock_guard lock(impl_->mutex);
    for (int32_t block = 0; block < impl_->pool.num_blocks(); ++block) {
      if (impl_->index.contains(block)) impl_->list_unwritten(block);
    }
  }
  impl_->tier->blocks->drain();
}

kv::BlockTier* KvCache::block_tier() { return impl_->tier ? impl_->tier->blocks.get() : nullptr; }

// ---- into the pool ----

int64_t KvCache::begin_fetch(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens,
                             const FetchJudge& is_worth) {
  const int64_t stored = sequence.num_tokens_;
  if (sequence.cache_.get() != this || !impl_->tier || sequence.fetch_ || sequence.open_end_ >= 0) return stored;
  // A secret sequence leaves no trace in a tier, not even that a file was read.
  if (sequence.secret_ || stored % impl_->block_size != 0) return stored;
  const auto size = static_cast<size_t>(impl_->block_size);
  const int64_t wanted = std::clamp<int64_t>(max_tokens, 0, static_cast<int64_t>(token_ids.size()));
  kv::BlockTier& tier = *impl_->tier->blocks;
  std::vector<kv::TierRecord> records;
  int64_t end = stored;
  {
    const std::lock_guard lock(impl_->mutex);
    const int32_t last = stored > 0 ? sequence.block_ids_[static_cast<size_t>(stored) / size - 1] : -1;
    if (last >= 0 && !impl_->index.contains(last)) return stored;
    Hash128 chain =
        last >= 0 ? impl_->index.hash(last) : kv::PrefixIndex::root_hash(impl_->config.identity, *sequence.salt_);
    Hash128 key = last >= 0 ? impl_->tier->keys[static_cast<size_t>(last)] : Impl::tier_root(*sequence.salt_);
    size_t with_state = 0;
    for (; end + impl_->block_size <= wanted; end += impl_->block_size) {
      const auto tokens = token_ids.subspan(static_cast<size_t>(end), size);
      chain = impl_->index.child_hash(chain, tokens);
      key = Impl::tier_key(key, tokens);
      if (key == kNoKey || !tier.contains({impl_->tier->tag, key, kv::TierKind::kBlock})) break;
      records.push_back(impl_->tier_record(kv::TierKind::kBlock, key, chain, tokens));
      if (impl_->has_state() && tier.contains({impl_->tier->tag, key, kv::TierKind::kState}))
        with_state = records.size();
    }
    if (impl_->has_state()) {
      // A state cannot be cut: what lies behind the last one is of no use.
      records.resize(with_state);
      end = stored + static_cast<int64_t>(with_state * size);
    }
    if (records.empty()) return stored;
    if (impl_->has_state()) {
      const kv::TierRecord& at = records.back();
      records.insert(records.begin(), impl_->tier_record(kv::TierKind::kState, at.key.key, at.chain, at.token_ids));
    }
  }
  if (is_worth && !is_worth(end, tier.predict_ns(records))) {
    tier.forgo();
    return stored;
  }
  if (!reserve(sequence, end).ok()) return stored;

  auto fetched = std::make_shared<KvFetch>();
  fetched->num_blocks = (end - stored) / impl_->block_size;
  const size_t first_block = impl_->has_state() ? 1 : 0;
  if (impl_->has_state()) fetched->state = std::make_shared<std::vector<std::byte>>();
  std::vector<int32_t> blocks(sequence.block_ids_.begin() + stored / impl_->block_size,
                              sequence.block_ids_.begin() + end / impl_->block_size);
  fetched->fetch = std::make_shared<kv::BlockFetch>(
      std::move(records), [impl = impl_.get(), state = fetched->state, blocks = std::move(blocks), first_block](
                              size_t index, std::span<const std::byte> raw) {
        if (index < first_block) {
          state->assign(raw.begin(), raw.end());
          return;
        }
        const int32_t block = blocks[index - first_block];
        for (size_t layer = 0; layer < impl->config.layers.size(); ++layer) {
          const size_t bytes = impl->config.layers[layer].block_bytes();
          if (bytes == 0) continue;
          impl->pool.write_block(layer, block, raw.data());
          raw = raw.subspan(bytes);
        }
      });
  sequence.fetch_ = fetched;
  tier.fetch(fetched->fetch);
  return end;
}

bool KvCache::fetch_done(const KvSequence& sequence) const {
  return !sequence.fetch_ || sequence.fetch_->fetch->done();
}

void KvCache::wait_fetch(const KvSequence& sequence, std::chrono::milliseconds limit) const {
  if (sequence.fetch_) sequence.fetch_->fetch->wait(limit);
}

int64_t KvCache::end_fetch(KvSequence& sequence, std::span<const int32_t> token_ids) {
  if (sequence.cache_.get() != this || !sequence.fetch_) return sequence.num_tokens_;
  const std::shared_ptr<KvFetch> fetched = std::move(sequence.fetch_);
  sequence.fetch_ = nullptr;
  fetched->fetch->cancel();
  auto arrived = static_cast<int64_t>(fetched->fetch->num_delivered());
  if (impl_->has_state()) {
    arrived = static_cast<size_t>(arrived) == fetched->fetch->size() ? fetched->num_blocks : 0;
    if (arrived == 0) return sequence.num_tokens_;
  }
  const int64_t before = sequence.num_tokens_;
  const int64_t end = before + arrived * impl_->block_size;
  if (impl_->has_state()) {
    const std::lock_guard lock(impl_->mutex);
    sequence.pending_.reserve(1);  // before anything is changed
    std::memcpy(impl_->states.data(sequence.state_slot_), fetched->state->data(), fetched->state->size());
    sequence.open_end_ = end;
    // The next one with this prefix finds a snapshot, as this one would have left it.
    if (const int32_t slot = impl_->states.take_for_snapshot(); slot >= 0) {
      sequence.pending_.emplace_back(end, slot);
      impl_->states.copy(sequence.state_slot_, slot);
    }
  }
  if (!commit(sequence, token_ids, end).ok()) {
    rewind(sequence, before);
    return sequence.num_tokens_;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->disk_tokens += end - before;
  return end;
}

int64_t KvCache::match_and_fetch(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens) {
  match_prefix(sequence, token_ids, max_tokens);
  if (begin_fetch(sequence, token_ids, max_tokens, nullptr) == sequence.num_tokens_) return sequence.num_tokens_;
  if (!impl_->tier->blocks->threaded()) impl_->tier->blocks->drain();
  while (!fetch_done(sequence)) wait_fetch(sequence, std::chrono::seconds(1));
  return end_fetch(sequence, token_ids);
}

}  // namespace headrace
