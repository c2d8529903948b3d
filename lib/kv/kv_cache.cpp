#include "kv/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "kv/kv_cache_impl.h"
#include "kv/kv_file.h"

namespace headrace {
namespace {

// Far above any model's, and small enough that no size of one block overflows.
constexpr int32_t kMaxDimension = 1 << 16;

Status validate(const KvCacheConfig& config) {
  if (config.layers.empty()) return invalid_argument("layers", "there is no layer to cache");
  const KvLayout& first = config.layers[0];
  for (const KvLayout& layout : config.layers) {
    if (layout.dtype < KvDType::kF32 || layout.dtype > KvDType::kQ8) {
      return invalid_argument("dtype", "{} is no KV type", static_cast<int32_t>(layout.dtype));
    }
    if (layout.dtype != first.dtype || layout.block_size != first.block_size) {
      return invalid_argument("layers", "differ in KV type or block size");
    }
    if (layout.block_size <= 0 || layout.block_size % kKvTile != 0 || layout.block_size > kMaxDimension) {
      return invalid_argument("block_size", "{} is not a multiple of {} in [{}, {}]", layout.block_size, kKvTile,
                              kKvTile, kMaxDimension);
    }
    if (layout.tokens_per_row < 1 || (layout.tokens_per_row > 1 && layout.content != KvContent::kRows)) {
      return invalid_argument("layers", "{} tokens cannot share a row", layout.tokens_per_row);
    }
    if (layout.num_kv_heads == 0 && config.state_floats > 0) continue;  // a layer without attention
    if (layout.num_kv_heads <= 0 || layout.num_kv_heads > kMaxDimension || layout.head_dim <= 0 ||
        layout.head_dim > kMaxDimension) {
      return invalid_argument("layers", "{} KV heads of {} are not in [1, {}]", layout.num_kv_heads, layout.head_dim,
                              kMaxDimension);
    }
  }
  if (config.num_blocks <= 0 || config.num_blocks > std::numeric_limits<int32_t>::max()) {
    return invalid_argument("num_blocks", "{} is not in [1, 2^31)", config.num_blocks);
  }
  if (config.state_floats == 0) return Status();
  if (config.state_floats > std::numeric_limits<uint32_t>::max()) {
    return invalid_argument("state_floats", "{} are too many", config.state_floats);
  }
  if (config.num_states < 1) return invalid_argument("num_states", "{} is less than 1", config.num_states);
  if (config.max_snapshots < 0) return invalid_argument("max_snapshots", "{} is negative", config.max_snapshots);
  if (config.snapshot_interval < 0 || config.snapshot_interval % first.block_size != 0) {
    return invalid_argument("snapshot_interval", "{} is no multiple of the block size {}", config.snapshot_interval,
                            first.block_size);
  }
  return Status();
}

// A salt as it is, unless it could be taken for the other form.
std::string salt_with_length(std::string salt, int64_t rope_length) {
  constexpr char kMark = '\1';
  if (rope_length == 0 && !salt.starts_with(kMark)) return salt;
  return kMark + std::to_string(rope_length) + kMark + salt;
}

// Of a file's values: those of another rotation are of no use.
Hash128 identity_with_length(const Hash128& identity, int64_t rope_length) {
  if (rope_length == 0) return identity;
  const uint64_t parts[] = {identity.low, identity.high, static_cast<uint64_t>(rope_length)};
  return hash128(parts, sizeof parts);
}

}  // namespace

void KvCache::Impl::close_state(KvSequence& sequence) {
  for (const auto& [position, slot] : sequence.pending_) {
    const int32_t block = sequence.block_ids_[static_cast<size_t>(position / block_size - 1)];
    if (sequence.secret_ && states.snapshot(block) >= 0) states.clear(slot);  // it is given back
    states.attach(block, slot);
  }
  sequence.pending_.clear();
  sequence.open_end_ = -1;
}

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(std::move(other.cache_)),
      block_ids_(std::exchange(other.block_ids_, {})),
      num_tokens_(std::exchange(other.num_tokens_, 0)),
      num_published_(std::exchange(other.num_published_, 0)),
      rope_length_(other.rope_length_),
      salt_(std::move(other.salt_)),
      secret_(other.secret_),
      fetch_(std::move(other.fetch_)),
      state_slot_(std::exchange(other.state_slot_, -1)),
      open_end_(std::exchange(other.open_end_, -1)),
      pending_(std::exchange(other.pending_, {})) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this != &other) {
    if (cache_) cache_->release(*this);
    cache_ = std::move(other.cache_);
    block_ids_ = std::exchange(other.block_ids_, {});
    num_tokens_ = std::exchange(other.num_tokens_, 0);
    num_published_ = std::exchange(other.num_published_, 0);
    rope_length_ = other.rope_length_;
    salt_ = std::move(other.salt_);
    secret_ = other.secret_;
    fetch_ = std::move(other.fetch_);
    state_slot_ = std::exchange(other.state_slot_, -1);
    open_end_ = std::exchange(other.open_end_, -1);
    pending_ = std::exchange(other.pending_, {});
  }
  return *this;
}

KvSequence::~KvSequence() {
  if (cache_) cache_->release(*this);
}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCache::~KvCache() = default;

Result<std::shared_ptr<KvCache>> KvCache::create(KvCacheConfig config) { return create(std::move(config), nullptr); }

Result<std::shared_ptr<KvCache>> KvCache::create(KvCacheConfig config, std::unique_ptr<kv::BlockTier> tier) {
  HEADRACE_RETURN_IF_ERROR(validate(config));
  const int64_t num_blocks = config.num_blocks;
  try {
    auto impl = std::make_unique<Impl>(std::move(config));
    // The pool first: the index touches its memory at once, and a pool beyond all bounds fails without doing
    // so.
    HEADRACE_RETURN_IF_ERROR(
        impl->pool.allocate(impl->config.layers, static_cast<int32_t>(num_blocks), impl->config.memory));
    if (impl->has_state()) {
      const KvCacheConfig& c = impl->config;
      HEADRACE_RETURN_IF_ERROR(impl->states.allocate(c.state_floats * sizeof(float), c.num_states, c.max_snapshots,
                                                     static_cast<int32_t>(num_blocks)));
    }
    impl->index = kv::PrefixIndex(static_cast<int32_t>(num_blocks), impl->block_size, impl->config.hash_mask);
    impl->gone = kv::EvictedHashes(2 * static_cast<size_t>(num_blocks));
    impl->secrets.resize(static_cast<size_t>(num_blocks));
    impl->states.on_evict([impl = impl.get()](int32_t block, int32_t slot) {
      if (impl->secrets[static_cast<size_t>(block)]) impl->states.clear(slot);
      if (impl->tier) impl->stage(kv::TierKind::kState, block);
    });
    if (tier) impl->open_tier(std::move(tier));
    return std::shared_ptr<KvCache>(new KvCache(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return out_of_memory("kv cache", "no memory for the index of {} blocks", num_blocks);
  } catch (const std::length_error&) {
    return out_of_memory("kv cache", "no memory for the index of {} blocks", num_blocks);
  }
}

const KvCacheConfig& KvCache::config() const { return impl_->config; }
int32_t KvCache::block_size() const { return impl_->block_size; }

KvCacheStats KvCache::stats() const {
  const std::lock_guard lock(impl_->mutex);
  KvCacheStats stats;
  stats.num_blocks = impl_->pool.num_blocks();
  stats.free_blocks = impl_->pool.free_blocks();
  stats.cached_blocks = impl_->index.size();
  stats.lookup_tokens = impl_->lookup_tokens;
  stats.hit_tokens = impl_->hit_tokens;
  stats.evictions = impl_->evictions;
  stats.pool_bytes = impl_->pool.bytes() + impl_->states.bytes();
  stats.num_states = impl_->states.num_slots();
  stats.free_states = impl_->states.available();
  stats.num_snapshots = impl_->states.num_snapshots();
  stats.disk_tokens = impl_->disk_tokens;
  if (impl_->tier) {
    stats.disk = impl_->tier->blocks->stats();
    stats.host = impl_->tier->blocks->host_stats();
  }
  return stats;
}

std::byte* KvCache::layer_data(int32_t layer) { return impl_->pool.layer_data(static_cast<size_t>(layer)); }

int32_t KvCache::content_id(const Hash128& content) {
  const std::lock_guard lock(impl_->mutex);
  const auto next = static_cast<int32_t>(-1 - static_cast<int64_t>(impl_->contents.size()));
  return impl_->contents.emplace(std::pair(content.high, content.low), next).first->second;
}

KvSequence KvCache::new_sequence(std::string salt, int64_t rope_length, bool secret) {
  KvSequence sequence;
  sequence.secret_ = secret || impl_->config.zero_retention;
  sequence.rope_length_ = rope_length;
  sequence.salt_ = std::make_shared<const std::string>(salt_with_length(std::move(salt), rope_length));
  sequence.cache_ = shared_from_this();
  return sequence;
}

int64_t KvCache::match_prefix(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t max_tokens,
                              PrefixMiss* miss) {
  PrefixMiss unasked;
  PrefixMiss& why = miss != nullptr ? *miss : unasked;
  why = PrefixMiss::kNone;
  if (sequence.cache_.get() != this || sequence.num_tokens_ != 0) return 0;
  const int64_t wanted = std::clamp<int64_t>(max_tokens, 0, static_cast<int64_t>(token_ids.size()));
  const std::lock_guard lock(impl_->mutex);
  impl_->lookup_tokens += wanted;
  if (!impl_->config.prefix_index) {
    why = PrefixMiss::kIndexOff;
    return 0;
  }

  std::vector<int32_t> found = impl_->find_prefix(token_ids.first(static_cast<size_t>(wanted)), *sequence.salt_, why);
  if (impl_->has_state()) {
    const auto kept = static_cast<size_t>(impl_->snapshot_before(found, static_cast<int64_t>(found.size())));
    if (kept < found.size()) why = PrefixMiss::kNoSnapshot;
    found.resize(kept);
    if (!found.empty() && sequence.state_slot_ < 0) {
      sequence.state_slot_ = impl_->states.take(impl_->states.snapshot(found.back()));
      if (sequence.state_slot_ < 0) {
        why = PrefixMiss::kNoSnapshot;
        return 0;
      }
    }
  }
  if (found.empty()) return 0;
  if (impl_->has_state()) {
    impl_->restore_state(sequence.state_slot_, found, static_cast<int64_t>(found.size()) * impl_->block_size);
  }
  impl_->drop_from(sequence.block_ids_, 0);  // room reserved for positions that now lie in shared blocks
  for (const int32_t block : found) impl_->pool.hold(block);
  sequence.num_published_ = static_cast<int64_t>(found.size());
  sequence.num_tokens_ = sequence.num_published_ * impl_->block_size;
  sequence.block_ids_ = std::move(found);
  impl_->hit_tokens += sequence.num_tokens_;
  return sequence.num_tokens_;
}

int64_t KvCache::peek_prefix(std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt,
                             int64_t rope_length) const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->config.prefix_index) return 0;
  const int64_t wanted = std::clamp<int64_t>(max_tokens, 0, static_cast<int64_t>(token_ids.size()));
  PrefixMiss why = PrefixMiss::kNone;
  const auto found =
      impl_->find_prefix(token_ids.first(static_cast<size_t>(wanted)), salt_with_length(salt, rope_length), why);
  auto blocks = static_cast<int64_t>(found.size());
  if (impl_->has_state()) blocks = impl_->snapshot_before(found, blocks);
  return blocks * impl_->block_size;
}

Status KvCache::reserve(KvSequence& sequence, int64_t num_tokens) {
  if (sequence.cache_.get() != this) return invalid_argument("kv cache", "the sequence belongs to another cache");
  if (num_tokens <= sequence.num_tokens_) return Status();
  if (sequence.open_end_ >= 0) return failed_precondition("kv cache", "a step of the sequence was not committed");
  const int64_t wanted = impl_->blocks_for(num_tokens);
  const auto held = static_cast<int64_t>(sequence.block_ids_.size());
  const int64_t added = std::max<int64_t>(0, wanted - held);

  const std::lock_guard lock(impl_->mutex);
  const auto last = static_cast<size_t>(sequence.num_tokens_ / impl_->block_size);
  const bool copies =
      sequence.num_tokens_ % impl_->block_size != 0 &&
      (impl_->pool.references(sequence.block_ids_[last]) > 1 || impl_->index.contains(sequence.block_ids_[last]));
  const int64_t needed = added + (copies ? 1 : 0);
  if (needed > impl_->pool.free_blocks()) {
    return resource_exhausted("kv cache", "{} blocks are needed, {} of {} are free", needed, impl_->pool.free_blocks(),
                              impl_->pool.num_blocks());
  }
  const bool takes_state = impl_->has_state() && sequence.state_slot_ < 0;
  if (takes_state && impl_->states.available() == 0) {
    return resource_exhausted("kv cache", "all {} recurrent states are in use", impl_->states.num_slots());
  }
  if (wanted > static_cast<int64_t>(sequence.block_ids_.capacity())) {
    try {
      sequence.block_ids_.reserve(static_cast<size_t>(std::max(wanted, 2 * held)));
    } catch (const std::bad_alloc&) {
      return out_of_memory("kv cache", "no memory for a table of {} blocks", wanted);
    }
  }
  if (takes_state) sequence.state_slot_ = impl_->states.take();
  if (copies) {
    const int32_t copy = impl_->take_block(sequence.secret_);
    impl_->pool.copy_block(sequence.block_ids_[last], copy);
    impl_->drop_block(std::exchange(sequence.block_ids_[last], copy));
  }
  for (int64_t i = 0; i < added; ++i) sequence.block_ids_.push_back(impl_->take_block(sequence.secret_));
  return Status();
}

float* KvCache::open_state(KvSequence& sequence, int64_t end, std::vector<KvStateSnapshot>& snapshots,
                           float* row_states) {
  if (!impl_->has_state() || sequence.cache_.get() != this || sequence.state_slot_ < 0) return nullptr;
  const std::lock_guard lock(impl_->mutex);
  if (sequence.num_tokens_ == 0) impl_->states.clear(sequence.state_slot_);
  sequence.open_end_ = end;
  const int64_t interval = impl_->config.snapshot_interval;
  const size_t first = snapshots.size();
  if (interval > 0) {
    const int64_t count = end / interval - sequence.num_tokens_ / interval;
    snapshots.reserve(first + static_cast<size_t>(count));
    sequence.pending_.reserve(sequence.pending_.size() + static_cast<size_t>(count));
    // From the last one back: where there is no room for all, the longest prefix is the most useful.
    for (int64_t at = end / interval * interval; at > sequence.num_tokens_; at -= interval) {
      const int32_t slot = impl_->states.take_for_snapshot();
      if (slot < 0) break;
      sequence.pending_.emplace_back(at, slot);
      snapshots.push_back({at, reinterpret_cast<float*>(impl_->states.data(slot))});
    }
    std::reverse(snapshots.begin() + static_cast<ptrdiff_t>(first), snapshots.end());
  }
  if (row_states != nullptr) {
    std::vector<KvStateSnapshot> asked(snapshots.begin() + static_cast<ptrdiff_t>(first), snapshots.end());
    snapshots.resize(first);
    auto next = asked.begin();
    for (int64_t at = sequence.num_tokens_ + 1; at <= end; ++at) {
      if (next != asked.end() && next->position == at) {
        snapshots.push_back(*next++);
      } else if (at < end) {
        const int64_t row = at - sequence.num_tokens_ - 1;
        snapshots.push_back({at, row_states + static_cast<uint64_t>(row) * impl_->config.state_floats});
      }
    }
  }
  return reinterpret_cast<float*>(impl_->states.data(sequence.state_slot_));
}

void KvCache::keep_rows(KvSequence& sequence, int64_t num_tokens, const float* row_states) {
  if (sequence.cache_.get() != this || sequence.open_end_ < 0 || num_tokens >= sequence.open_end_) return;
  const std::lock_guard lock(impl_->mutex);
  const float* state =
      row_states + static_cast<uint64_t>(num_tokens - sequence.num_tokens_ - 1) * impl_->config.state_floats;
  for (const auto& [position, slot] : sequence.pending_) {
    if (position == num_tokens) state = reinterpret_cast<const float*>(impl_->states.data(slot));
  }
  impl_->drop_pending(sequence, num_tokens);
  std::memcpy(impl_->states.data(sequence.state_slot_), state, impl_->states.state_bytes());
  sequence.open_end_ = num_tokens;
}

int64_t KvCache::slot(const KvSequence& sequence, int64_t position) const {
  const auto block = static_cast<size_t>(position / impl_->block_size);
  return int64_t{sequence.block_ids_[block]} * impl_->block_size + position % impl_->block_size;
}

Status KvCache::commit(KvSequence& sequence, std::span<const int32_t> token_ids, int64_t num_tokens) {
  if (sequence.cache_.get() != this) return invalid_argument("kv cache", "the sequence belongs to another cache");
  const int64_t room = static_cast<int64_t>(sequence.block_ids_.size()) * impl_->block_size;
  if (num_tokens < sequence.num_tokens_ || num_tokens > room || num_tokens > static_cast<int64_t>(token_ids.size())) {
    return invalid_argument("kv cache", "{} positions committed, {} stored, room for {}, {} tokens", num_tokens,
                            sequence.num_tokens_, room, token_ids.size());
  }
  if (sequence.open_end_ >= 0 ? sequence.open_end_ != num_tokens
                              : impl_->has_state() && num_tokens != sequence.num_tokens_) {
    return invalid_argument("kv cache", "{} positions committed, the state was opened for {}", num_tokens,
                            sequence.open_end_);
  }
  if (sequence.fetch_) return failed_precondition("kv cache", "blocks of the sequence are on their way");
  if (!impl_->config.prefix_index || sequence.secret_) {
    const std::lock_guard lock(impl_->mutex);
    impl_->close_state(sequence);
    sequence.num_tokens_ = num_tokens;
    return Status();
  }
  const std::lock_guard lock(impl_->mutex);
  int64_t published = sequence.num_published_;
  const auto first = static_cast<size_t>(published);
  Hash128 hash = first > 0 ? impl_->index.hash(sequence.block_ids_[first - 1])
                           : kv::PrefixIndex::root_hash(impl_->config.identity, *sequence.salt_);
  int32_t parent = first > 0 ? sequence.block_ids_[first - 1] : -1;
  for (; (published + 1) * impl_->block_size <= num_tokens; ++published) {
    const auto tokens =
        token_ids.subspan(static_cast<size_t>(published * impl_->block_size), static_cast<size_t>(impl_->block_size));
    int32_t& own = sequence.block_ids_[static_cast<size_t>(published)];
    hash = impl_->index.child_hash(hash, tokens);
    const int32_t found = impl_->index.find(hash, parent, tokens, *sequence.salt_);
    if (impl_->index.contains(own) && found != own) {
      // Only the first block can be one: every later one is the sequence's own and unpublished.
      return invalid_argument("kv cache", "the tokens of block {} are not those published before", published);
    }
    if (found < 0) {
      if (impl_->tier) {
        impl_->tier->keys[static_cast<size_t>(own)] = impl_->tier_key_of(parent, *sequence.salt_, tokens);
      }
      impl_->index.insert(own, hash, parent, tokens, sequence.salt_);
    } else if (found != own) {
      impl_->pool.hold(found);
      impl_->drop_block(std::exchange(own, found));
    }
    parent = own;
  }
  impl_->close_state(sequence);
  sequence.num_published_ = published;
  sequence.num_tokens_ = num_tokens;
  return Status();
}

KvSequence KvCache::fork(const KvSequence& sequence) {
  KvSequence copy;
  if (sequence.cache_.get() != this) return copy;
  copy.rope_length_ = sequence.rope_length_;
  copy.secret_ = sequence.secret_;
  const auto stored = static_cast<ptrdiff_t>(impl_->blocks_for(sequence.num_tokens_));
  if (impl_->has_state()) {
    copy.salt_ = sequence.salt_;
    if (sequence.num_tokens_ > 0 && sequence.open_end_ < 0) {
      const std::lock_guard lock(impl_->mutex);
      copy.state_slot_ = impl_->states.take();
      if (copy.state_slot_ >= 0) impl_->states.copy(sequence.state_slot_, copy.state_slot_);
    }
    if (copy.state_slot_ < 0) {
      copy.cache_ = sequence.cache_;
      return copy;
    }
  }
  copy.block_ids_.assign(sequence.block_ids_.begin(), sequence.block_ids_.begin() + stored);
  copy.num_tokens_ = sequence.num_tokens_;
  copy.num_published_ = sequence.num_published_;
  copy.salt_ = sequence.salt_;
  const std::lock_guard lock(impl_->mutex);
  for (const int32_t block : copy.block_ids_) impl_->pool.hold(block);
  copy.cache_ = sequence.cache_;
  return copy;
}

void KvCache::rewind(KvSequence& sequence, int64_t num_tokens) {
  if (sequence.cache_.get() != this) return;
  if (sequence.fetch_) {
    sequence.fetch_->fetch->cancel();  // before its blocks are anybody else's
    sequence.fetch_ = nullptr;
  }
  const std::lock_guard lock(impl_->mutex);
  int64_t kept = std::clamp<int64_t>(num_tokens, 0, sequence.num_tokens_);
  if (impl_->has_state()) {
    impl_->drop_pending(sequence);
    if (kept > 0 && (kept != sequence.num_tokens_ || sequence.open_end_ >= 0)) {
      kept = impl_->restore_state(sequence.state_slot_, sequence.block_ids_, kept);
    }
    sequence.open_end_ = -1;
    if (kept == 0) impl_->give_state(sequence);
  }
  sequence.num_tokens_ = kept;
  sequence.num_published_ = std::min(sequence.num_published_, sequence.num_tokens_ / impl_->block_size);
  impl_->drop_from(sequence.block_ids_, impl_->blocks_for(sequence.num_tokens_));
}

void KvCache::release(KvSequence& sequence) { rewind(sequence, 0); }

void KvCache::clear_prefix_index() {
  {
    const std::lock_guard lock(impl_->mutex);
    // In the list's order children come before their parents.
    const auto list = impl_->pool.checked_free_list();
    if (!list.ok()) return;
    for (const int32_t block : *list) {
      if (!impl_->index.contains(block)) continue;
      impl_->index.erase(block);
      impl_->states.detach(block);
      impl_->pool.discard_contents(block);
    }
  }
  if (impl_->tier) impl_->tier->blocks->clear(impl_->tier->tag);
}

Status KvCache::save(const KvSequence& sequence, std::span<const int32_t> token_ids, const WriteCallback& write) const {
  if (sequence.cache_.get() != this) return invalid_argument("kv cache", "the sequence belongs to another cache");
  if (static_cast<int64_t>(token_ids.size()) < sequence.num_tokens_) {
    return invalid_argument("token_ids", "{} tokens for {} stored positions", token_ids.size(), sequence.num_tokens_);
  }
  std::vector<std::byte> copy;  // of a block in device memory
  const auto block = [&](int64_t index, size_t layer) {
    const size_t bytes = impl_->config.layers[layer].block_bytes();
    const int32_t id = sequence.block_ids_[static_cast<size_t>(index)];
    if (bytes == 0) return std::span<const std::byte>();
    if (impl_->pool.in_host_memory()) {
      return std::span<const std::byte>(impl_->pool.layer_data(layer) + static_cast<size_t>(id) * bytes, bytes);
    }
    copy.resize(bytes);
    impl_->pool.read_block(layer, id, copy.data());
    return std::span<const std::byte>(copy);
  };
  if (sequence.open_end_ >= 0) return failed_precondition("kv cache", "a step of the sequence was not committed");
  std::vector<std::byte> none;  // in place of a state before the first position
  std::span<const std::byte> state;
  if (impl_->has_state()) {
    const uint64_t bytes = impl_->states.state_bytes();
    if (sequence.state_slot_ < 0) none.resize(bytes);
    state = {sequence.state_slot_ < 0 ? none.data() : impl_->states.data(sequence.state_slot_), bytes};
  }
  return kv::write_kv_file(impl_->config.layers, identity_with_length(impl_->config.identity, sequence.rope_length_),
                           token_ids.first(static_cast<size_t>(sequence.num_tokens_)), block, state, write);
}

Result<KvCache::Restored> KvCache::restore(ByteSource& source, std::string salt, int64_t rope_length) {
  const Hash128 identity = identity_with_length(impl_->config.identity, rope_length);
  HEADRACE_ASSIGN_OR_RETURN(
      const auto reader, kv::KvFileReader::open(source, impl_->config.layers, identity, impl_->states.state_bytes()));
  Restored restored;
  restored.sequence = new_sequence(std::move(salt), rope_length);
  // Before the tokens get memory: a pool that is too small also bounds what a reader's claims can cost.
  if (Status status = reserve(restored.sequence, reader.num_tokens()); !status.ok())
    return status.within(source.name());
  HEADRACE_ASSIGN_OR_RETURN(restored.token_ids, reader.read_token_ids());
  std::span<std::byte> state;
  if (restored.sequence.state_slot_ >= 0) {
    state = {impl_->states.data(restored.sequence.state_slot_), impl_->states.state_bytes()};
    restored.sequence.open_end_ = reader.num_tokens();
  }
  struct {
    size_t layer = 0;
    int32_t block = 0;
    std::vector<std::byte> bytes;
  } copy;  // of a block in device memory
  const auto write_copy = [&] {
    if (!copy.bytes.empty()) impl_->pool.write_block(copy.layer, copy.block, copy.bytes.data());
  };
  const auto block = [&](int64_t index, size_t layer) {
    const size_t bytes = impl_->config.layers[layer].block_bytes();
    const int32_t id = restored.sequence.block_ids_[static_cast<size_t>(index)];
    if (bytes == 0) return std::span<std::byte>();
    if (impl_->pool.in_host_memory()) {
      return std::span<std::byte>(impl_->pool.layer_data(layer) + static_cast<size_t>(id) * bytes, bytes);
    }
    write_copy();
    copy.layer = layer;
    copy.block = id;
    copy.bytes.resize(bytes);
    return std::span<std::byte>(copy.bytes);
  };
  HEADRACE_RETURN_IF_ERROR(reader.read_blocks(block, state));
  write_copy();
  HEADRACE_RETURN_IF_ERROR(commit(restored.sequence, restored.token_ids, reader.num_tokens()));
  return restored;
}

Status KvCache::check_invariants() const { return check_invariants({}); }

Status KvCache::check_invariants(std::span<const KvSequence* const> all_sequences) const {
  const std::lock_guard lock(impl_->mutex);
  const kv::BlockPool& pool = impl_->pool;
  const kv::PrefixIndex& index = impl_->index;
  HEADRACE_ASSIGN_OR_RETURN(const auto free_list, pool.checked_free_list());
  HEADRACE_RETURN_IF_ERROR(index.check(impl_->config.identity));
  HEADRACE_RETURN_IF_ERROR(impl_->states.check());
  for (const int32_t block : free_list) {
    if (impl_->states.snapshot(block) >= 0 && !index.contains(block)) {
      return internal_error("kv cache", "empty block {} has a snapshot", block);
    }
  }
  if (!impl_->config.prefix_index && index.size() != 0)
    return internal_error("kv cache", "the index is off and not empty");

  // Blocks without contents come first, and every block before its parent; a held block's parent is held.
  std::vector<int64_t> rank(static_cast<size_t>(pool.num_blocks()), std::numeric_limits<int64_t>::max());
  bool cached = false;
  for (size_t i = 0; i < free_list.size(); ++i) {
    rank[static_cast<size_t>(free_list[i])] = static_cast<int64_t>(i);
    if (cached && !index.contains(free_list[i])) {
      return internal_error("kv cache", "empty block {} stands behind cached ones", free_list[i]);
    }
    cached = index.contains(free_list[i]);
  }
  for (int32_t block = 0; block < pool.num_blocks(); ++block) {
    if (!index.contains(block) || index.parent(block) < 0) continue;
    const int32_t parent = index.parent(block);
    if (pool.references(block) > pool.references(parent) ||
        (pool.references(block) == 0 && rank[static_cast<size_t>(block)] >= rank[static_cast<size_t>(parent)] &&
         pool.references(parent) == 0)) {
      return internal_error("kv cache", "block {} would outlive its parent {}", block, parent);
    }
  }
  if (all_sequences.empty()) return Status();

  std::vector<int32_t> references(static_cast<size_t>(pool.num_blocks()), 0);
  int64_t current_states = 0;
  for (const KvSequence* sequence : all_sequences) {
    if (sequence->cache_.get() != this) continue;
    const auto held = static_cast<int64_t>(sequence->block_ids_.size());
    const int64_t stored = impl_->blocks_for(sequence->num_tokens_);
    const int64_t full = sequence->num_tokens_ / impl_->block_size;
    if (impl_->has_state() && sequence->num_tokens_ > 0 && sequence->state_slot_ < 0) {
      return internal_error("kv cache", "{} tokens have no state", sequence->num_tokens_);
    }
    if (sequence->state_slot_ >= 0) {
      ++current_states;
      if (!impl_->states.is_current(sequence->state_slot_)) {
        return internal_error("kv cache", "state {} is not the sequence's own", sequence->state_slot_);
      }
    }
    if (stored > held) return internal_error("kv cache", "{} tokens lie in {} blocks", sequence->num_tokens_, held);
    if (sequence->secret_ ? sequence->num_published_ > full
                          : sequence->num_published_ != (impl_->config.prefix_index ? full : 0)) {
      return internal_error("kv cache", "{} of {} full blocks are published", sequence->num_published_, full);
    }
    for (int64_t i = 0; i < held; ++i) {
      const int32_t block = sequence->block_ids_[static_cast<size_t>(i)];
      if (block < 0 || block >= pool.num_blocks()) return internal_error("kv cache", "{} is no block", block);
      ++references[static_cast<size_t>(block)];
      if (i < sequence->num_published_) {
        const int32_t parent = i > 0 ? sequence->block_ids_[static_cast<size_t>(i - 1)] : -1;
        if (!index.contains(block) || index.parent(block) != parent) {
          return internal_error("kv cache", "block {} is not published after {}", block, parent);
        }
      }
      if (i >= stored && (pool.references(block) != 1 || index.contains(block))) {
        return internal_error("kv cache", "reserved block {} is not the sequence's own", block);
      }
    }
  }
  int64_t marked = 0;
  for (int32_t slot = 0; slot < impl_->states.num_slots(); ++slot) marked += impl_->states.is_current(slot) ? 1 : 0;
  if (marked != current_states) {
    return internal_error("kv cache", "{} sequences have a state, {} are taken", current_states, marked);
  }
  for (int32_t block = 0; block < pool.num_blocks(); ++block) {
    if (pool.references(block) != references[static_cast<size_t>(block)]) {
      return internal_error("kv cache", "block {} has {} holders, counted {}", block,
                            references[static_cast<size_t>(block)], pool.references(block));
    }
  }
  return Status();
}

}  // namespace headrace
