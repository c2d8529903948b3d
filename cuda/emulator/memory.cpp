#include "emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "emulator/race_detector.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

// A block's arena is larger than a device's, so that static variables can lie apart.
constexpr size_t kArenaBytes = 512 << 10;
constexpr size_t kGap = 256;

void* reserve(size_t size) {
  void* out = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (out == MAP_FAILED) throw std::bad_alloc();
  return out;
}

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

struct Heap {
  char* bytes = static_cast<char*>(reserve(kDeviceBytes));
  ByteState* state = static_cast<ByteState*>(reserve(kDeviceBytes));
  RaceCell* cells = static_cast<RaceCell*>(reserve(kDeviceBytes / 8 * sizeof(RaceCell)));
  size_t top = 0, in_use = 0;
  std::map<size_t, size_t> allocations;  // offset, size
};

Heap& heap() {
  static Heap value;
  return value;
}

}  // namespace

// Reserved whole, and used as far as kernels reach.
struct SharedArena {
  char* bytes = static_cast<char*>(reserve(kArenaBytes));
  ByteState* state = static_cast<ByteState*>(reserve(kArenaBytes));
  RaceCell* cells = static_cast<RaceCell*>(reserve(kArenaBytes / 8 * sizeof(RaceCell)));
};

namespace {

std::vector<SharedArena*>& free_arenas() {
  static std::vector<SharedArena*> value;
  return value;
}

void open(SharedArena& arena, size_t offset, size_t size) {
  std::memset(arena.bytes + offset, kPoison, size);
  std::memset(arena.state + offset, static_cast<int>(ByteState::kUnwritten), size);
}

}  // namespace

void acquire_arena(Block& block, size_t dynamic_bytes) {
  if (free_arenas().empty()) free_arenas().push_back(new SharedArena);
  block.arena = free_arenas().back();
  free_arenas().pop_back();
  open(*block.arena, 0, dynamic_bytes);
  block.shared_used = static_cast<uint32_t>(dynamic_bytes);
}

void release_arena(Block& block) {
  std::memset(block.arena->state, static_cast<int>(ByteState::kOutside), block.shared_used);
  free_arenas().push_back(block.arena);
}

void* shared_variable(const void* site, size_t size, size_t alignment) {
  Block& block = *current()->block;
  for (const SharedVariable& variable : block.shared_variables) {
    if (variable.site == site) return block.arena->bytes + variable.offset;
  }
  const size_t offset = round_up(block.shared_used + kGap, std::max<size_t>(alignment, 16));
  if (offset + size > kArenaBytes - kGap) fail(FindingKind::kMisuse, "too much static shared memory");
  open(*block.arena, offset, size);
  block.shared_variables.push_back({site, static_cast<uint32_t>(offset)});
  block.shared_used = static_cast<uint32_t>(offset + size);
  return block.arena->bytes + offset;
}

unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(current()->block->arena->bytes); }

bool in_shared(const Block& block, const void* address, size_t size) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - block.arena->bytes);
  return offset < kArenaBytes && size <= kArenaBytes - offset;
}

Region region_of(const Block* block, const void* address) {
  if (block != nullptr && in_shared(*block, address, 1)) {
    const auto offset = static_cast<size_t>(static_cast<const char*>(address) - block->arena->bytes);
    return {Region::Space::kShared, offset, block->arena->state, block->arena->cells};
  }
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - heap().bytes);
  if (offset < kDeviceBytes) return {Region::Space::kGlobal, offset, heap().state, heap().cells};
  return {};
}

void* device_allocate(size_t size) {
  Heap& h = heap();
  if (h.allocations.empty()) h.top = 0;
  const size_t room = round_up(size, 256) + kGap;
  if (size == 0 || room < size || room > kDeviceBytes - h.top) return nullptr;
  const size_t offset = h.top;
  h.top += room;
  h.in_use += size;
  h.allocations[offset] = size;
  std::memset(h.bytes + offset, kPoison, size);
  std::memset(h.state + offset, static_cast<int>(ByteState::kUnwritten), size);
  std::memset(h.state + offset + size, static_cast<int>(ByteState::kOutside), room - size);
  return h.bytes + offset;
}

bool device_free(void* pointer) {
  Heap& h = heap();
  const auto found = h.allocations.find(static_cast<size_t>(static_cast<char*>(pointer) - h.bytes));
  if (found == h.allocations.end()) return false;
  std::memset(h.bytes + found->first, kPoison, found->second);
  std::memset(h.state + found->first, static_cast<int>(ByteState::kFreed), found->second);
  h.in_use -= found->second;
  h.allocations.erase(found);
  return true;
}

size_t device_bytes_in_use() { return heap().in_use; }

bool is_device_memory(const void* address, size_t size) {
  const Heap& h = heap();
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - h.bytes);
  auto next = h.allocations.upper_bound(offset);
  if (next == h.allocations.begin()) return false;
  const auto [begin, bytes] = *std::prev(next);
  return offset - begin <= bytes && size <= bytes - (offset - begin);
}

void mark_written(void* address, size_t size) {
  const auto offset = static_cast<size_t>(static_cast<char*>(address) - heap().bytes);
  std::memset(heap().state + offset, static_cast<int>(ByteState::kWritten), size);
}

}  // namespace headrace::emulator
