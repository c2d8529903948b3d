// Finds accesses to one byte, one of them a write, that nothing orders: vector clocks as in ThreadSanitizer, with the
// rules of CUDA's memory model. Barriers, __syncwarp and mbarriers order the threads that meet in them; shuffles, votes
// and matrix instructions order nothing. Between blocks the only order is a fence before an atomic operation, and
// another block's atomic operation on the same word; what a block learns that way all of its threads know, which is
// more than the model says. An acquiring operation needs no fence behind it here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace headrace::emulator {

struct Block;
struct Region;
struct Thread;

enum AccessFlags : uint8_t {
  kReadAccess = 0,
  kWriteAccess = 1,
  kAtomicAccess = 2,
  kAsyncAccess = 4,  // by a copy that has not been waited for: ordered before nothing, not even its own thread
};

// The last accesses to 8 bytes; each has a mask of the bytes it touched.
struct RaceCell {
  struct Access {
    const void* instruction;
    uint32_t sequence, epoch, time;  // of the block, within it, of the thread
    uint16_t thread;
    uint8_t mask, flags;
  };
  static constexpr int kAccesses = 4;
  Access accesses[kAccesses];
};

// The times of a block's threads that somebody knows of; everything of an earlier epoch is known too.
struct Knowledge {
  uint32_t epoch = 0;
  std::vector<uint32_t> seen;
  void merge(const Knowledge& other);
};
struct BlockKnowledge {
  std::map<uint32_t, Knowledge> blocks;  // by their sequence
};

void start_race_detection();

// All threads of the block have met.
void advance_epoch(Block& block);
// These threads of one block have met.
void join_threads(std::span<Thread* const> threads);
// The thread's past is left at `key`, for the threads of its block that take it from there.
void release_to(const void* key, Thread& thread);
void acquire_from(const void* key, Thread& thread);
void forget(const void* key);

// An access of the running thread, checked against those before it.
void record_access(Thread& thread, const Region& region, size_t size, uint8_t flags, const void* instruction);
// The thread has waited for a copy to these bytes.
void settle_async(Thread& thread, const Region& region, size_t size);

// __threadfence: what an atomic operation after it makes known.
void fence(Thread& thread);
// An atomic operation on `address` takes over what those before it made known and, unless it only reads, adds to it.
void synchronise_through(const void* address, Thread& thread, bool only_reads);

}  // namespace headrace::emulator
