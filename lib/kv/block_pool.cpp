#include "kv/block_pool.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/checked.h"

namespace headrace::kv {

BlockPool::~BlockPool() {
  for (const Region& region : regions_) {
    if (region.data == nullptr) continue;
    if (memory_ != nullptr) {
      memory_->free(region.data);
    } else {
      munmap(region.data, region.size);
    }
  }
}

Status BlockPool::allocate(const std::vector<KvLayout>& layers, int32_t num_blocks,
                           std::shared_ptr<DeviceMemory> memory) {
  memory_ = std::move(memory);
  uint64_t total = 0;
  for (const KvLayout& layout : layers) {
    const auto size = checked_mul<uint64_t>(layout.block_bytes(), static_cast<uint64_t>(num_blocks));
    const auto sum = size ? checked_add<uint64_t>(total, *size) : size;
    if (!sum || *sum > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return invalid_argument("num_blocks", "{} blocks of {} bytes overflow", num_blocks, layout.block_bytes());
    }
    total = *sum;
  }
  try {
    regions_.reserve(layers.size());
  } catch (const std::bad_alloc&) {
    return out_of_memory("kv cache", "no memory for {} layers", layers.size());
  }
  for (const KvLayout& layout : layers) {
    const size_t size = layout.block_bytes() * static_cast<size_t>(num_blocks);
    if (size == 0) {  // a layer without attention
      regions_.push_back({});
      continue;
    }
    void* data = memory_ != nullptr ? memory_->allocate(size)
                                    : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == (memory_ != nullptr ? nullptr : MAP_FAILED)) {
      return out_of_memory("kv cache", "the {} gives no {} bytes for layer {} ({} bytes in all)",
                           memory_ != nullptr ? "device" : "system", size, regions_.size(), total);
    }
    regions_.push_back({static_cast<std::byte*>(data), size, layout.block_bytes()});
  }
  try {
    states_.resize(static_cast<size_t>(num_blocks));
  } catch (const std::bad_alloc&) {
    return out_of_memory("kv cache", "no memory for the states of {} blocks", num_blocks);
  }
  num_blocks_ = num_blocks;
  bytes_ = total;
  for (int32_t block = 0; block < num_blocks; ++block) link_back(block);
  return Status();
}

void BlockPool::link_front(int32_t block) {
  State& s = state(block);
  s.previous = -1;
  s.next = head_;
  (head_ < 0 ? tail_ : state(head_).previous) = block;
  head_ = block;
  ++free_blocks_;
}

void BlockPool::link_back(int32_t block) {
  State& s = state(block);
  s.previous = tail_;
  s.next = -1;
  (tail_ < 0 ? head_ : state(tail_).next) = block;
  tail_ = block;
  ++free_blocks_;
}

void BlockPool::unlink(int32_t block) {
  State& s = state(block);
  (s.previous < 0 ? head_ : state(s.previous).next) = s.next;
  (s.next < 0 ? tail_ : state(s.next).previous) = s.previous;
  s.previous = s.next = -1;
  --free_blocks_;
}

int32_t BlockPool::take() {
  const int32_t block = head_;
  if (block >= 0) hold(block);
  return block;
}

void BlockPool::hold(int32_t block) {
  if (state(block).references++ == 0) unlink(block);
}

void BlockPool::drop(int32_t block, bool keep_contents) {
  if (--state(block).references > 0) return;
  if (keep_contents) {
    link_back(block);
  } else {
    link_front(block);
  }
}

void BlockPool::discard_contents(int32_t block) {
  unlink(block);
  link_front(block);
}

void BlockPool::copy_block(int32_t from, int32_t to) {
  for (const Region& region : regions_) {
    if (region.data == nullptr) continue;
    if (memory_ != nullptr) {
      memory_->copy(bytes_of(region, from), bytes_of(region, to), region.block_bytes);
    } else {
      std::memcpy(bytes_of(region, to), bytes_of(region, from), region.block_bytes);
    }
  }
}

void BlockPool::clear_block(int32_t block) {
  for (const Region& region : regions_) {
    if (region.data == nullptr) continue;
    if (memory_ != nullptr) {
      memory_->clear(bytes_of(region, block), region.block_bytes);
    } else {
      std::memset(bytes_of(region, block), 0, region.block_bytes);
    }
  }
}

void BlockPool::read_block(size_t layer, int32_t block, std::byte* to) const {
  const Region& region = regions_[layer];
  if (memory_ != nullptr) return memory_->read(bytes_of(region, block), to, region.block_bytes);
  std::memcpy(to, bytes_of(region, block), region.block_bytes);
}

void BlockPool::write_block(size_t layer, int32_t block, const std::byte* from) {
  const Region& region = regions_[layer];
  if (memory_ != nullptr) return memory_->write(from, bytes_of(region, block), region.block_bytes);
  std::memcpy(bytes_of(region, block), from, region.block_bytes);
}

Result<std::vector<int32_t>> BlockPool::checked_free_list() const {
  std::vector<int32_t> list;
  int32_t previous = -1;
  for (int32_t block = head_; block >= 0; block = states_[static_cast<size_t>(block)].next) {
    const State& s = states_[static_cast<size_t>(block)];
    if (s.references != 0) return internal_error("kv cache", "free block {} has {} holders", block, s.references);
    if (s.previous != previous) return internal_error("kv cache", "free block {} has a broken link", block);
    if (list.size() == states_.size()) return internal_error("kv cache", "the free list runs in a circle");
    list.push_back(block);
    previous = block;
  }
  if (previous != tail_) return internal_error("kv cache", "the free list does not end at its tail");
  int64_t unheld = 0;
  for (const State& s : states_) {
    if (s.references < 0) return internal_error("kv cache", "a block has {} holders", s.references);
    unheld += s.references == 0 ? 1 : 0;
  }
  if (unheld != free_blocks_ || unheld != static_cast<int64_t>(list.size())) {
    return internal_error("kv cache", "{} blocks are unheld, {} listed, {} counted", unheld, list.size(), free_blocks_);
  }
  return list;
}

}  // namespace headrace::kv
