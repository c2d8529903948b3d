// The memory of recurrent states: slots of one size. A slot is the current state of a sequence, or a snapshot of
// the state after a block's last token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

namespace headrace::kv {

// One zeroed allocation [num_slots][state_bytes]; pages cost memory once they are written. Snapshots are keyed by
// block and shared by all that hold it; the least recently used one gives way to a current state or to another
// snapshot. Empty (no memory, every take fails) until allocate() is called. Thread rule: the owner locks; the bytes of
// a slot belong to the step that opened it.
class StatePool {
 public:
  StatePool() = default;
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;
  ~StatePool();

  // Called once. num_current slots are never given to snapshots, of which there are at most max_snapshots.
  // kInvalidArgument for sizes that overflow, kOutOfMemory when the system gives no memory.
  Status allocate(uint64_t state_bytes, int32_t num_current, int32_t max_snapshots, int32_t num_blocks);

  // Told of a snapshot that gives way, before its bytes do.
  void on_evict(std::function<void(int32_t block, int32_t slot)> told) { on_evict_ = std::move(told); }

  uint64_t state_bytes() const { return state_bytes_; }
  uint64_t bytes() const { return size_; }
  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }
  // Slots that take() could give now.
  int32_t available() const { return static_cast<int32_t>(free_.size()) + num_attached_; }
  int32_t num_snapshots() const { return num_attached_; }
  std::byte* data(int32_t slot) { return data_ + static_cast<size_t>(slot) * state_bytes_; }

  // A slot for a current state; -1 when there is none. The snapshot `keep` is not taken for it.
  int32_t take(int32_t keep = -1);
  // A slot for a snapshot that a step will write; -1 when there are max_snapshots that cannot give way.
  int32_t take_for_snapshot();
  // Gives a slot of either kind back.
  void give(int32_t slot);
  // A written snapshot is the block's from now on; where the block has one, the slot is given back.
  void attach(int32_t block, int32_t slot);
  // The slot of a block's snapshot, or -1.
  int32_t snapshot(int32_t block) const { return of_block_.empty() ? -1 : of_block_[static_cast<size_t>(block)]; }
  // A block's snapshot was used.
  void touch(int32_t block);
  // The block's contents are no longer of use.
  void detach(int32_t block);

  void clear(int32_t slot);
  void copy(int32_t from, int32_t to);

  // Slots marked as current states of sequences, by slot.
  bool is_current(int32_t slot) const { return slots_[static_cast<size_t>(slot)].use == Use::kCurrent; }
  // kInternal when counts, links or the free list disagree.
  Status check() const;

 private:
  enum class Use : uint8_t { kFree, kCurrent, kPending, kSnapshot };
  struct Slot {
    Use use = Use::kFree;
    int32_t block = -1;      // of a snapshot
    uint64_t last_used = 0;  // of a snapshot
  };
  // Frees the least recently used snapshot but `keep`; false when there is none.
  bool evict(int32_t keep);
  void release(int32_t slot);

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t state_bytes_ = 0;
  int32_t max_snapshots_ = 0;
  int32_t num_pending_ = 0;
  int32_t num_attached_ = 0;
  uint64_t clock_ = 0;
  std::function<void(int32_t, int32_t)> on_evict_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;      // the last one is taken first: its pages are warm
  std::vector<int32_t> of_block_;  // [num_blocks]
};

}  // namespace headrace::kv
