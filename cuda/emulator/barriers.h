// Barriers of a block and everything a warp does together. Each function returns when all threads it waits for have come.
#pragma once

#include <cstdint>

#include "emulator/findings.h"

namespace headrace::emulator {

struct Thread;
struct Warp;

// bar.sync or, with `arrive_only`, bar.arrive on one of the block's sixteen barriers. count: threads that take part, 0
// for all. Barrier 0 with count 0 is __syncthreads.
void sync_block(int barrier, int count, bool arrive_only, const char* name, Place place);

enum class Reduction { kOr, kAnd, kCount };
int sync_block_reduce(Reduction reduction, bool value, const char* name, Place place);

// __syncwarp: orders the lanes' memory accesses, which no other collective does.
void sync_warp(uint32_t mask, Place place);

// An instruction that the lanes of `mask` execute together. Each lane leaves a pointer to its operands; the last one to
// come runs `execute` on those of all (warp.operands), then all go on. Lanes that ended count as having come.
void collective(uint32_t mask, const char* name, void* operands, void (*execute)(Warp&, uint32_t mask), Place place);

// value of lane `source`, an absolute lane within mask. Undefined (all bits set) where that lane is not in the mask.
uint64_t shuffle(uint32_t mask, uint64_t value, int source, const char* name, Place place);
uint32_t ballot(uint32_t mask, bool value, const char* name, Place place);
enum class WarpReduction { kAdd, kMin, kMax, kUnsignedMin, kUnsignedMax, kAnd, kOr, kXor };
uint32_t reduce_warp(WarpReduction reduction, uint32_t mask, uint32_t value, const char* name, Place place);
uint32_t match_any(uint32_t mask, uint64_t value, Place place);

// Of the scheduler: a thread has ended, others may have waited for it alone.
void thread_ended(Thread& thread);

}  // namespace headrace::emulator
