#include "kv/state_pool.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <new>

#include "base/checked.h"

namespace headrace::kv {

StatePool::~StatePool() {
  if (data_ != nullptr) munmap(data_, size_);
}

Status StatePool::allocate(uint64_t state_bytes, int32_t num_current, int32_t max_snapshots, int32_t num_blocks) {
  const auto num_slots = static_cast<uint64_t>(num_current) + static_cast<uint64_t>(max_snapshots);
  const auto size = checked_mul<uint64_t>(state_bytes, num_slots);
  if (!size || *size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
      num_slots > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return invalid_argument("num_states", "{} states of {} bytes overflow", num_slots, state_bytes);
  }
  try {
    slots_.resize(num_slots);
    free_.reserve(num_slots);
    of_block_.assign(static_cast<size_t>(num_blocks), -1);
  } catch (const std::bad_alloc&) {
    return out_of_memory("kv cache", "no memory for the books of {} states", num_slots);
  }
  void* data = mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return out_of_memory("kv cache", "the system gives no {} bytes for {} states", *size, num_slots);
  }
  data_ = static_cast<std::byte*>(data);
  size_ = *size;
  state_bytes_ = state_bytes;
  max_snapshots_ = max_snapshots;
  for (auto slot = static_cast<int32_t>(num_slots); slot-- > 0;) free_.push_back(slot);
  return Status();
}

bool StatePool::evict(int32_t keep) {
  int32_t oldest = -1;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    const Slot& s = slots_[static_cast<size_t>(slot)];
    if (s.use != Use::kSnapshot || slot == keep) continue;
    if (oldest < 0 || s.last_used < slots_[static_cast<size_t>(oldest)].last_used) oldest = slot;
  }
  if (oldest >= 0 && on_evict_) on_evict_(slots_[static_cast<size_t>(oldest)].block, oldest);
  if (oldest >= 0) release(oldest);
  return oldest >= 0;
}

int32_t StatePool::take(int32_t keep) {
  if (free_.empty() && !evict(keep)) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  slots_[static_cast<size_t>(slot)].use = Use::kCurrent;
  return slot;
}

int32_t StatePool::take_for_snapshot() {
  if ((num_pending_ + num_attached_ >= max_snapshots_ || free_.empty()) && !evict(-1)) return -1;
  if (max_snapshots_ == 0 || free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  slots_[static_cast<size_t>(slot)].use = Use::kPending;
  ++num_pending_;
  return slot;
}

void StatePool::release(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (s.use == Use::kPending) --num_pending_;
  if (s.use == Use::kSnapshot) {
    --num_attached_;
    of_block_[static_cast<size_t>(s.block)] = -1;
  }
  s = Slot();
  free_.push_back(slot);
}

void StatePool::give(int32_t slot) { release(slot); }

void StatePool::attach(int32_t block, int32_t slot) {
  if (snapshot(block) >= 0) {
    touch(block);
    return release(slot);
  }
  --num_pending_;
  ++num_attached_;
  slots_[static_cast<size_t>(slot)] = {Use::kSnapshot, block, ++clock_};
  of_block_[static_cast<size_t>(block)] = slot;
}

void StatePool::touch(int32_t block) {
  const int32_t slot = snapshot(block);
  if (slot >= 0) slots_[static_cast<size_t>(slot)].last_used = ++clock_;
}

void StatePool::detach(int32_t block) {
  const int32_t slot = snapshot(block);
  if (slot >= 0) release(slot);
}

void StatePool::clear(int32_t slot) { std::memset(data(slot), 0, state_bytes_); }

void StatePool::copy(int32_t from, int32_t to) {
  if (from != to) std::memcpy(data(to), data(from), state_bytes_);
}

Status StatePool::check() const {
  size_t free_slots = 0;
  int32_t pending = 0, attached = 0;
  for (int32_t slot = 0; slot < num_slots(); ++slot) {
    const Slot& s = slots_[static_cast<size_t>(slot)];
    free_slots += s.use == Use::kFree ? 1 : 0;
    pending += s.use == Use::kPending ? 1 : 0;
    attached += s.use == Use::kSnapshot ? 1 : 0;
    if (s.use == Use::kSnapshot && snapshot(s.block) != slot) {
      return internal_error("kv states", "snapshot {} is not that of block {}", slot, s.block);
    }
  }
  for (const int32_t slot : free_) {
    if (slots_[static_cast<size_t>(slot)].use != Use::kFree) {
      return internal_error("kv states", "slot {} is listed as free and is not", slot);
    }
  }
  if (free_slots != free_.size() || pending != num_pending_ || attached != num_attached_) {
    return internal_error("kv states", "{} free, {} pending, {} snapshots; counted {}, {}, {}", free_slots, pending,
                          attached, free_.size(), num_pending_, num_attached_);
  }
  if (pending + attached > max_snapshots_) {
    return internal_error("kv states", "{} snapshots, {} are allowed", pending + attached, max_snapshots_);
  }
  return Status();
}

}  // namespace headrace::kv
