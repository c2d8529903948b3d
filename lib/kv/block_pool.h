// The memory of the paged KV cache: fixed blocks, how many sequences hold each, and the order in which unheld
// ones are taken again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/device_memory.h"
#include "base/status.h"
#include "tensor/kv_layout.h"

namespace headrace::kv {

// One zeroed allocation per layer, [num_blocks][block_bytes], page-aligned; pages cost memory once they are
// written. A block nobody holds stands in the free list: blocks without reusable contents at the front (the
// last one freed is the first taken, its pages are warm), those with contents worth keeping at the back,
// oldest first. Thread rule: the owner locks; layer_data() alone may be called at any time.
class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool();

  // Called once; memory: null for the program's. kInvalidArgument for sizes that overflow, kOutOfMemory when the system or
  // the device gives no memory.
  Status allocate(const std::vector<KvLayout>& layers, int32_t num_blocks, std::shared_ptr<DeviceMemory> memory);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t free_blocks() const { return free_blocks_; }
  uint64_t bytes() const { return bytes_; }
  std::byte* layer_data(size_t layer) const { return regions_[layer].data; }

  int32_t references(int32_t block) const { return states_[static_cast<size_t>(block)].references; }
  // The block that take() would give; -1 when every block is held.
  int32_t next_free() const { return head_; }
  // Takes next_free() out of the list with one reference.
  int32_t take();
  // One more holder; an unheld block leaves the free list.
  void hold(int32_t block);
  // One holder less; the last one puts the block into the free list, at the back when its contents are to be
  // kept.
  void drop(int32_t block, bool keep_contents);
  // Moves an unheld block to the front: its contents are no longer of use.
  void discard_contents(int32_t block);

  // All layers' bytes of one block.
  void copy_block(int32_t from, int32_t to);
  void clear_block(int32_t block);
  // One layer's bytes of one block to and from the program's memory. All of them.
  void read_block(size_t layer, int32_t block, std::byte* to) const;
  void write_block(size_t layer, int32_t block, const std::byte* from);
  // Whether layer_data() may be read and written by the program.
  bool in_host_memory() const { return memory_ == nullptr; }

  // The free list from first to last taken. kInternal when links, counts and references disagree.
  Result<std::vector<int32_t>> checked_free_list() const;

 private:
  struct Region {
    std::byte* data = nullptr;
    size_t size = 0;
    size_t block_bytes = 0;
  };
  struct State {
    int32_t references = 0;
    int32_t previous = -1;  // in the free list
    int32_t next = -1;
  };
  State& state(int32_t block) { return states_[static_cast<size_t>(block)]; }
  void link_front(int32_t block);
  void link_back(int32_t block);
  void unlink(int32_t block);

  std::byte* bytes_of(const Region& region, int32_t block) const {
    return region.data + static_cast<size_t>(block) * region.block_bytes;
  }

  std::shared_ptr<DeviceMemory> memory_;
  std::vector<Region> regions_;
  std::vector<State> states_;
  int32_t num_blocks_ = 0;
  int32_t free_blocks_ = 0;
  int32_t head_ = -1;
  int32_t tail_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace headrace::kv
