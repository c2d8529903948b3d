// The memory that kernels see: one device heap, and an arena of shared memory for each resident block. Every byte has a
// state, and every word a record of who touched it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace::emulator {

struct Block;
struct RaceCell;

inline constexpr size_t kMaxSharedBytes = 227 << 10;       // of a block, from compute capability 9.0 on
inline constexpr size_t kDefaultSharedBytes = 48 << 10;    // more must be asked for
inline constexpr size_t kDeviceBytes = size_t{512} << 20;  // of the heap
inline constexpr int kPoison = 0xFF;                       // fills memory nobody has written: NaN as a float

enum class ByteState : uint8_t { kOutside, kUnwritten, kWritten, kFreed };

// Where an address lies. `state` and `cells` belong to offset 0 of the space.
struct Region {
  enum class Space { kNone, kShared, kGlobal };
  Space space = Space::kNone;
  size_t offset = 0;
  ByteState* state = nullptr;
  RaceCell* cells = nullptr;
};
Region region_of(const Block* block, const void* address);
// Whether [address, address + size) is shared memory of the block.
bool in_shared(const Block& block, const void* address, size_t size);

// Of the scheduler: a block's shared memory, `dynamic_bytes` of it given out at once.
void acquire_arena(Block& block, size_t dynamic_bytes);
void release_arena(Block& block);
// Of kernels: a static shared variable, by the place of its definition, and the dynamic part.
void* shared_variable(const void* site, size_t size, size_t alignment);
unsigned char* dynamic_shared();

// Device memory, aligned to 256 bytes with a gap behind. Null where none is left. Freed memory is not given out again while
// anything is allocated, so that its use is seen.
void* device_allocate(size_t size);
bool device_free(void* pointer);
size_t device_bytes_in_use();
// Whether [address, address + size) lies in one allocation.
bool is_device_memory(const void* address, size_t size);
// The host has written these bytes (cudaMemcpy, cudaMemset).
void mark_written(void* address, size_t size);

}  // namespace headrace::emulator
